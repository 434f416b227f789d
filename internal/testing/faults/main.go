// Command faults runs the campaign of faults: real processes, a real PostgreSQL server and brokers, to which all kinds of
// things are done while writers write. It prints an account, and exits with 1 if a promise was not kept. See
// docs/inside/testing.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/outboxgen/outboxgen/internal/testing/faults/driver"
	"github.com/outboxgen/outboxgen/internal/testing/faults/shop"
)

// diskVariable is set for a process with its own mounts.
const diskVariable = "OUTBOXGEN_TEST_FAULTS_DISK"

func main() {
	if orders := os.Getenv(shop.Variable); orders != "" {
		os.Exit(shop.Main(orders))
	}
	if os.Geteuid() == 0 && os.Getenv(diskVariable) == "" {
		if status, ok := withDisk(); ok {
			os.Exit(status)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// withDisk runs this program again with its own mounts, so that it can have a disk that goes away with it. It reports
// whether it could.
func withDisk() (status int, ok bool) {
	dir, err := os.MkdirTemp("", "outboxgen-faults-disk-")
	if err != nil {
		return 0, false
	}
	defer func() { _ = os.Remove(dir) }()
	signal.Ignore(os.Interrupt, syscall.SIGTERM) // the child decides
	self, err := os.Executable()
	if err != nil {
		return 0, false
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), diskVariable+"="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = driver.OwnMounts()
	if err := cmd.Start(); err != nil {
		signal.Reset()
		return 0, false
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), true
	}
	return 0, err == nil
}

func run(ctx context.Context, args []string, out, progress io.Writer) int {
	c := driver.Config{Progress: progress}
	flags := flag.NewFlagSet("faults", flag.ExitOnError)
	flags.Uint64Var(&c.Seed, "seed", rand.Uint64()>>32, "of the faults and of what is written")
	flags.IntVar(&c.Events, "events", 0, "how many events are written at `least`")
	flags.IntVar(&c.Faults, "faults", 0, "how many faults are caused; 0 means as many as fit into the time")
	flags.DurationVar(&c.Time, "time", 10*time.Minute, "how long faults are caused; without effect if -faults is set")
	flags.Float64Var(&c.Rate, "rate", 0, "how many events per `second` are written; 0 means that -events are spread over the time, or 300")
	flags.StringVar(&c.Keep, "keep", "", "`folder` in which the history and the logs stay")
	calm := flags.Bool("calm", false, "cause no faults, and allow no duplicates")
	_ = flags.Parse(args) // which exits on an error
	if c.Faults > 0 {
		c.Time = 0
	}
	if c.Rate == 0 && c.Events == 0 {
		c.Rate = 300
	}
	if dir := os.Getenv(diskVariable); dir != "" {
		if err := driver.Mount(dir); err != nil {
			_, _ = fmt.Fprintln(progress, err)
		} else {
			c.Disk = dir
		}
	}
	campaign := driver.Run
	if *calm {
		campaign = driver.Calm
	}
	account, err := campaign(ctx, c)
	if account != nil {
		_, _ = fmt.Fprint(out, account)
	}
	switch {
	case err != nil:
		_, _ = fmt.Fprintf(progress, "faults: seed %d: %v\n", c.Seed, err)
		return 2
	case !account.OK():
		return 1
	}
	return 0
}
