package outbox_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/history"
	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// childVariable holds the orders of a child process.
const childVariable = "OUTBOXGEN_TEST_CHILD"

// orders tell a child what to run. It is a process of its own with one dispatcher of jobs/one, writes a line
// of JSON for each thing it logs and for each handler that starts, and ends on SIGTERM.
type orders struct {
	URL, History, Worker             string
	Lease, Poll                      time.Duration
	Concurrency, BatchSize, Attempts int
	// Handler is "work", which takes some random microseconds, "hang", which waits for its context or a line
	// of input, "ok" or "fail" being what it returns then, or "poison", which works unless the payload's
	// secret is poison: that ends the process.
	Handler string
}

// TestChild is not a test but the main function of the child processes.
func TestChild(t *testing.T) {
	text := os.Getenv(childVariable)
	if text == "" {
		return
	}
	var o orders
	require.NoError(t, json.Unmarshal([]byte(text), &o))
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	pool, err := pgxpool.New(ctx, o.URL)
	require.NoError(t, err)
	defer pool.Close()
	record, err := history.Open(o.History)
	require.NoError(t, err)
	defer func() { _ = record.Close() }()
	say := slog.New(slog.NewJSONHandler(os.Stdout, nil))
	input := make(chan string)
	if o.Handler == "hang" {
		go func() {
			for in := bufio.NewScanner(os.Stdin); in.Scan(); {
				input <- in.Text()
			}
		}()
	}
	topic := jobTopic("one")
	d := dispatcher(t, pool, outbox.DispatcherConfig{
		LeaseDuration: o.Lease, PollInterval: o.Poll, Concurrency: o.Concurrency, BatchSize: o.BatchSize, Logger: say,
	}, onJob(topic, func(ctx context.Context, d outbox.Delivery[job]) error {
		if err := record.Delivery(d.ID, d.Attempt, o.Worker); err != nil {
			return err
		}
		say.Info("handling", "n", d.Payload.N, "attempt", d.Attempt)
		switch {
		case o.Handler == "hang":
			if <-input == "fail" {
				return errors.New("failed as told")
			}
		case d.Payload.Secret == "poison":
			os.Exit(7)
		case rand.IntN(2) == 0:
			<-time.After(time.Duration(rand.Int64N(int64(2 * time.Millisecond))))
		}
		return nil
	}))
	require.NoError(t, d.Run(ctx))
}

// child is a process that runs TestChild.
type child struct {
	cmd   *exec.Cmd
	input io.WriteCloser
	lines chan string // closed at its end
	wait  func() error
}

func newChild(t testing.TB, pool *pgxpool.Pool, o orders) *child {
	t.Helper()
	o.URL = childURL(t, pool)
	return spawn(t, "TestChild", childVariable, o)
}

// childURL is the database of pool for a child, whose sessions are known by their name.
func childURL(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	u, err := url.Parse(pgtest.URL(t, pool))
	require.NoError(t, err)
	query := u.Query()
	query.Set("application_name", "child")
	u.RawQuery = query.Encode()
	return u.String()
}

// spawn starts this very test program as a child that runs one function, and finds its orders in a variable.
func spawn(t testing.TB, function, variable string, orders any) *child {
	t.Helper()
	text, err := json.Marshal(orders)
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	c := &child{cmd: exec.Command(self, "-test.run=^"+function+"$", "-test.count=1"), lines: make(chan string, 10_000)}
	c.cmd.Env = append(os.Environ(), variable+"="+string(text))
	c.cmd.Stderr = os.Stderr
	c.input, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	output, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(c.lines)
		for in := bufio.NewScanner(output); in.Scan(); {
			c.lines <- in.Text()
		}
	}()
	c.wait = sync.OnceValue(func() error {
		<-read
		return c.cmd.Wait()
	})
	t.Cleanup(func() { c.kill() })
	return c
}

func (c *child) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	require.NoError(t, c.cmd.Process.Signal(s))
}

// kill ends the process as a crash would and waits for its end.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // the only error is that it has ended
	go func() {
		for range c.lines { // nobody reads on
		}
	}()
	_ = c.wait()
}

// await reads on to the next line that holds part; "" when the process has ended before.
func (c *child) await(t testing.TB, part string) string {
	t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		select {
		case line, ok := <-c.lines:
			if !ok || strings.Contains(line, part) {
				return line
			}
		case <-timeout.C:
			require.FailNow(t, "timeout", "waited %s for %q", patience, part)
		}
	}
}

const handling = `"msg":"handling"`

func (c *child) tell(t testing.TB, line string) {
	t.Helper()
	_, err := fmt.Fprintln(c.input, line)
	require.NoError(t, err)
}
