// Program mutation changes one condition of the product at a time, and runs the tests that use it. A change that no test
// notices is a promise without a test. See docs/inside/testing.md.
//
// The test binaries are built once. They contain all mutants of Go, and read those of queries and schema from a file that
// an environment variable names, so a mutant costs no build.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

const explainedFile = "internal/testing/mutation/explained.txt"

type options struct {
	dir     string
	workers int
	sample  int
	seed    uint64
	only    string
	tests   string
	short   bool
	list    bool
	search  time.Duration
	cases   bool
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", "bin/mutation", "the folder for what is built and known")
	flag.IntVar(&o.workers, "workers", runtime.NumCPU(), "how many mutants are tried at a time")
	flag.IntVar(&o.sample, "sample", 0, "try as many mutants, chosen by -seed; 0 means all")
	flag.Uint64Var(&o.seed, "seed", 1, "chooses the sample, and the order")
	flag.StringVar(&o.only, "only", "", "try only mutants whose id matches this regular expression, for example \"^EventClaim:\"")
	flag.StringVar(&o.tests, "tests", "", "run only the tests whose name, as in queue.TestRun, matches this regular expression")
	flag.BoolVar(&o.short, "short", false, "leave out the tests that go test -short leaves out")
	flag.BoolVar(&o.list, "list", false, "only list the mutants")
	flag.DurationVar(&o.search, "search", 0, "for as long, look for cases that tell the mutants of each statement apart, and keep them in "+casesDir)
	flag.BoolVar(&o.cases, "cases", false, "only execute the cases of the statements, and run no tests: minutes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutation:", err)
		code = 1
	}
	os.Exit(code)
}

func run(ctx context.Context, o options) (int, error) {
	only, err := regexp.Compile(o.tests)
	if err != nil {
		return 1, err
	}
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return 1, err
	}
	goDir := filepath.Join(o.dir, "go")
	if err := os.MkdirAll(goDir, 0o700); err != nil {
		return 1, err
	}
	units, err := allUnits()
	if err != nil {
		return 1, err
	}
	mutants, err := sqlMutants(units)
	if err != nil {
		return 1, err
	}
	inGo, overlay, err := goMutants(goDir)
	if err != nil {
		return 1, err
	}
	mutants = append(mutants, inGo...)
	lines, err := readExplained(explainedFile)
	if err != nil {
		return 1, err
	}
	explained, unknown, err := reasons(lines, mutants)
	if err != nil {
		return 1, fmt.Errorf("%s: %w", explainedFile, err)
	}
	chosen, err := choose(mutants, o)
	if err != nil {
		return 1, err
	}
	if o.list {
		for _, m := range chosen {
			fmt.Println(m.id)
		}
		return 0, nil
	}
	if o.search > 0 {
		return 0, search(ctx, o, units, mutants, explained)
	}
	if o.cases {
		return runCases(ctx, o, chosen, explained)
	}
	s, database := newSuite(o.dir, chosen)
	if err := s.build(overlay); err != nil {
		return 1, err
	}
	var server *server
	if database {
		if server, err = startServer(ctx); err != nil {
			return 1, err
		}
		defer func() { _ = server.Stop() }()
		s.url = server.URL()
	}
	c := &campaign{
		suite: s, server: server, units: units, explained: explained, slow: !o.short, only: only, keeps: o.tests == "", workers: o.workers,
		replayers: make(chan *replayer, o.workers), kills: map[string]map[string]int{}, killers: map[string]string{}, results: map[string]result{},
	}
	ofGo, err := s.learn(ctx, s.packagesOfGo(), only, 2*o.workers, !o.short)
	if err != nil {
		return 1, err
	}
	c.ofGo = newReach(ofGo, units)
	for range o.workers {
		if server == nil {
			break // only mutants of SQL meet cases
		}
		r, err := newReplayer(ctx, server)
		if err != nil {
			return 1, err
		}
		c.replayers <- r
	}
	byID := map[string]mutant{}
	for _, m := range mutants {
		byID[m.id] = m
	}
	if !c.keeps {
		c.explained = nil
	}
	if err := c.resume(filepath.Join(o.dir, "results.jsonl"), byID); err != nil {
		return 1, err
	}
	defer func() { _ = c.file.Close() }()
	c.all(ctx, chosen, o.workers)
	return c.report(chosen, unknown), ctx.Err()
}

func allUnits() ([]unit, error) {
	units, err := queryUnits("internal/postgres/queries")
	if err != nil {
		return nil, err
	}
	objects, err := schemaUnits()
	return append(units, objects...), err
}

// choose returns the mutants to try, in a random order.
func choose(all []mutant, o options) (chosen []mutant, err error) {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		if only.MatchString(m.id) {
			chosen = append(chosen, m)
		}
	}
	slices.SortFunc(chosen, func(a, b mutant) int { return strings.Compare(a.id, b.id) })
	r := rand.New(rand.NewPCG(o.seed, 0))
	r.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
	if o.sample > 0 {
		chosen = chosen[:min(o.sample, len(chosen))]
	}
	return chosen, nil
}

// all tries the mutants whose result is not known yet.
func (c *campaign) all(ctx context.Context, chosen []mutant, workers int) {
	var wait []mutant
	for _, m := range chosen {
		if _, known := c.results[m.id]; !known {
			wait = append(wait, m)
		}
	}
	start, done := time.Now(), 0
	parallel(workers, wait, func(m mutant) {
		if ctx.Err() != nil {
			return
		}
		r := c.run(ctx, m)
		if ctx.Err() != nil {
			return // a result after the server was told to stop says nothing
		}
		c.keep(m, r)
		c.mu.Lock()
		defer c.mu.Unlock()
		done++
		if _, ok := c.explained[m.id]; r.Outcome == "lives" && !ok {
			fmt.Printf("lives: %s\n", m.id)
		}
		if done%100 == 0 {
			rate := float64(done) / time.Since(start).Minutes()
			fmt.Printf("%d of %d mutants, %.0f per minute, %.0f minutes left\n", done, len(wait), rate, float64(len(wait)-done)/rate)
		}
	})
}

// counts are those of some mutants.
type counts struct{ mutants, killed, explained, unexplained int }

func (n counts) String() string {
	return fmt.Sprintf("mutants=%d killed=%d explained=%d unexplained=%d", n.mutants, n.killed, n.explained, n.unexplained)
}

// report prints what is wrong, and the counts, of each package of Go and in all.
func (c *campaign) report(chosen []mutant, unknown []string) int {
	var all counts
	var hung, refused, wrong int
	packages := map[string]*counts{}
	for _, m := range chosen {
		r, ok := c.results[m.id]
		reason := c.explained[m.id]
		of := packages[m.goPackage]
		if of == nil {
			of = &counts{}
			packages[m.goPackage] = of
		}
		switch {
		case !ok:
			wrong++
		case r.Outcome == "refused":
			refused++
			continue
		case r.Outcome == "killed", r.Outcome == "hung":
			all.killed++
			of.killed++
			if r.Outcome == "hung" {
				hung++
			}
			if reason != "" {
				wrong++
				fmt.Printf("%s has a reason to live, but %s kills it: %s\n", explainedFile, r.Killer, m.id)
			}
		case r.Outcome == "lives" && reason != "":
			all.explained++
			of.explained++
		case r.Outcome == "lives":
			all.unexplained++
			of.unexplained++
			fmt.Printf("lives: %s\n", m.id)
		default:
			wrong++
			fmt.Printf("%s: %s\n", r.Outcome, m.id)
		}
		all.mutants++
		of.mutants++
	}
	for _, id := range unknown {
		wrong++
		fmt.Printf("%s explains a mutant that does not exist: %s\n", explainedFile, id)
	}
	fmt.Printf("PostgreSQL refused %d texts; of the killed, %d waited in vain\n", refused, hung)
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		if dir != "" {
			fmt.Printf("%s: %s\n", dir, packages[dir])
		}
	}
	fmt.Println(all)
	if all.unexplained+wrong > 0 {
		return 1
	}
	return 0
}
