// Command bench compares outboxgen with hand-written SQL, River and watermill on one PostgreSQL that it starts itself, with
// durable settings. It prints a table, and writes the table, its figures and a plot to the folder of -out.
//
// All figures that are compared come from one run on one machine. The report has the ratios and the spread.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if orders := os.Getenv(workerVariable); orders != "" {
		if err := workerMain(ctx, orders); err != nil {
			fmt.Fprintln(os.Stderr, "bench: worker process:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		for line := range strings.Lines(err.Error()) { // one per failed workload
			fmt.Fprintln(os.Stderr, "bench:", strings.TrimSuffix(line, "\n"))
		}
		os.Exit(1)
	}
}

type options struct {
	only    []string
	runs    int
	events  int
	history int
	minutes int
	out     string

	capacity []int
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	only := f.String("only", "", "run only these workloads: names or beginnings of names, separated by commas; each must match")
	f.IntVar(&o.runs, "runs", 5, "runs per contender; the result is the median")
	f.IntVar(&o.events, "events", 100_000, "events per drain")
	f.IntVar(&o.history, "history", 1_000_000, "delivered events in the tables of the workloads history and claims, and pending ones of status; the other rows are in proportion")
	f.IntVar(&o.minutes, "minutes", 0, "minutes of the sustained workload, 1,000 events/s; 0 leaves it out")
	f.StringVar(&o.out, "out", "",
		"existing folder for benchmarks.md, benchmarks.json and benchmarks.svg, which "+
			"are written after each workload and keep what they have of workloads that are not run; empty writes no files")
	f.Func("capacity", "histories, such as 10000000,100000000: print what one server carries next to each, and run no workload", func(list string) error {
		for _, text := range strings.Split(list, ",") {
			n, err := strconv.Atoi(text)
			if err != nil || n < 10_000 {
				return errors.New("use numbers of 10,000 or more, separated by commas")
			}
			o.capacity = append(o.capacity, n)
		}
		return nil
	})
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.runs < 1 || o.events < 10_000 || o.history < 1000 || o.minutes < 0 || o.minutes == 1 {
		return o, errors.New("use -runs of 1 or more, -events of 10,000 or more, -history of 1,000 or more, and -minutes of 0, or of 2 or more")
	}
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	if len(o.capacity) > 0 && (*only != "" || o.out != "") {
		return o, errors.New("-capacity runs no workload: leave out -only and -out")
	}
	return o, o.checkFolder()
}

// checkFolder writes and removes a file in the folder of -out. A run takes too long to find out at its end.
func (o options) checkFolder() error {
	if o.out == "" {
		return nil
	}
	f, err := os.CreateTemp(o.out, temporary)
	if err != nil {
		return fmt.Errorf("-out %s: cannot write there: %w", o.out, err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

func workloads(o options, report func(sample)) []workload {
	all := []workload{
		transactions(4, 1500), transactions(32, 300),
		many(100, 200), many(1000, 40), found(100, 300),
		doorbell(32, 300),
		drain(o.events), drainDeleting(o.events),
		handlers(time.Millisecond, 20, 20_000), handlers(5*time.Millisecond, 50, 20_000), handlers(50*time.Millisecond, 100, 5000),
		listen(2 * o.events), relay(4 * o.events), relayQueued(o.events),
		relayNATS(o.events), relayAMQP(o.events / 2), relayRedis(2 * o.events), relayWebhook(o.events / 2),
		savepoints(o.events / 1000), consuming(o.events / 5),
	}
	all = append(all, latencies()...)
	all = append(all, history(o.history), status(o.history), pages(o.history))
	all = append(all, claims(o.history)...)
	all = append(all, fairness(o.events)...)
	all = append(all, limits(o.events)...)
	all = append(all, rowSecurity(4, o.events/20, o.events)...)
	all = append(all, besideDBOS(o.events)...)
	all = append(all, curves(o.events)...)
	return append(all,
		generation(), compileTime(), compileMemory(), binarySize(), allocations(),
		sustained(1000, o.minutes, report),
	)
}

// selected returns the workloads that -only and -minutes name. Each name of -only must match one.
func (o options) selected(all []workload) ([]workload, error) {
	all = slices.DeleteFunc(slices.Clone(all), func(w workload) bool { return w.name == "sustained" && o.minutes == 0 })
	if len(o.only) == 0 {
		return slices.DeleteFunc(all, func(w workload) bool { return w.apart }), nil
	}
	var chosen []workload
	matched := make([]bool, len(o.only))
	for _, w := range all {
		taken := false
		for i, prefix := range o.only {
			if prefix != "" && strings.HasPrefix(w.name, prefix) {
				matched[i], taken = true, true
			}
		}
		if taken {
			chosen = append(chosen, w)
		}
	}
	if i := slices.Index(matched, false); i >= 0 {
		return nil, fmt.Errorf("-only: no workload has a name that begins with %q: use %s; sustained also needs -minutes",
			o.only[i], names(all))
	}
	return chosen, nil
}

func names(all []workload) string {
	var list []string
	for _, w := range all {
		list = append(list, w.name)
	}
	return strings.Join(list, ", ")
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	log := func(format string, args ...any) {
		fmt.Fprintf(stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
	}
	r := &session{options: o, stdout: stdout, log: log, rep: report{Machine: machine(), Started: time.Now().UTC(), Runs: o.runs}}
	r.all = workloads(o, func(s sample) {
		log("minute %d: %d handled, p50 %.2f ms, p99 %.2f ms, heap %.1f MiB, %d goroutines, table %.1f MiB, indexes %.1f MiB",
			s.Minute, s.Handled, s.P50, s.P99, s.HeapMiB, s.Goroutines, s.TableMiB, s.IndexMiB)
		r.rep.Samples = append(r.rep.Samples, s)
	})
	chosen, err := o.selected(r.all)
	if err != nil {
		return err
	}
	s, err := start()
	if err != nil {
		return err
	}
	defer func() { _ = s.stop() }()
	if len(o.capacity) > 0 {
		return capacities(ctx, s, o.capacity, stdout, log)
	}
	r.rep.PostgreSQL = s.version
	return r.run(ctx, chosen, measureOn(s))
}
