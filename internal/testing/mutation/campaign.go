package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// result is how a mutant ended. A later run takes it over while the test binaries are the same.
type result struct {
	ID      string
	Digest  string
	Outcome string // killed, hung, lives or refused
	Killer  string `json:",omitempty"`
	Seconds float64
}

// campaign runs mutants.
type campaign struct {
	suite     *suite
	server    *server
	units     []unit
	workers   int
	ofGo      *reach // of the tests of mutants of Go
	ofSQL     *reach // of the others, once a mutant needs it
	learning  sync.Mutex
	explained map[string]string // by mutant
	slow      bool
	only      *regexp.Regexp // the tests to run
	replayers chan *replayer // one for each worker
	keeps     bool           // whether mutants that live are kept, because only is all tests

	mu      sync.Mutex
	kills   map[string]map[string]int // by unit and test
	killers map[string]string         // by mutant, of earlier runs
	file    *os.File
	results map[string]result
}

// textual is in the output of tests that edit the text of a statement themselves, and do not find what they edit. That
// finds no wrong behaviour.
var textual = []string{"statement does not have exactly once", "mutant changes what this test edits"}

// perTest bounds a test beside what it takes alone. A test that takes longer waits for what does not come. One without a
// database takes milliseconds alone, and waits for nothing but its processor: it gets little time at first, and the other
// if the machine was so busy that it had hardly run in that.
const (
	perTest                = 20 * time.Second
	perTestWithoutDatabase = 3 * time.Second
	hardlyRun              = time.Second
)

// run tries one mutant: on the cases of its unit, on the tests that are named for it, and then on more and more of those that
// use what it changes.
func (c *campaign) run(ctx context.Context, m mutant) result {
	start := time.Now()
	r := result{ID: m.id, Digest: c.digest(m), Outcome: "lives"}
	if m.goPackage == "" && !c.server.accepts(ctx, m) {
		r.Outcome = "refused"
		return r
	}
	if m.goPackage == "" && c.only.MatchString(replayTest) {
		replayer := <-c.replayers
		killed, err := replayer.kills(ctx, m)
		c.replayers <- replayer
		if err != nil {
			fmt.Printf("execute the cases: %v: %s\n", err, m.id)
		}
		if killed {
			r.Outcome, r.Killer, r.Seconds = "killed", replayTest, time.Since(start).Seconds()
			return r
		}
	}
	env, done, err := c.prepare(m)
	if err != nil {
		r.Outcome = "error: " + err.Error()
		return r
	}
	defer done()
	for _, t := range c.named(m) {
		if r.Outcome == "lives" {
			r.Outcome, r.Killer = c.try([]test{t}, env)
		}
	}
	if r.Outcome == "lives" {
		r.Outcome, r.Killer = c.others(ctx, m, env)
	}
	r.Seconds = time.Since(start).Seconds()
	if err := c.server.forget(ctx, m); err != nil {
		fmt.Println("drop the templates of a mutant:", err)
	}
	return r
}

// named returns the tests that are tried on a mutant of SQL next to the cases: the one that has killed it before, and those
// that look at what no case shows.
func (c *campaign) named(m mutant) []test {
	if m.goPackage != "" {
		return nil
	}
	c.mu.Lock()
	names := []string{c.killers[m.id]}
	c.mu.Unlock()
	for _, n := range namedTests {
		if n.of.MatchString(m.id) {
			names = append(names, n.tests...)
		}
	}
	var tests []test
	for _, name := range names {
		dot := strings.LastIndex(name, ".")
		if dot < 0 || name == replayTest || !c.only.MatchString(name) {
			continue
		}
		tests = append(tests, test{Package: name[:dot], Name: name[dot+1:], Millis: namedTakes.Milliseconds(), Slow: c.slow})
	}
	return tests
}

// others tries the tests that use what m changes. A mutant of SQL with a reason is not tried on them: there are hundreds.
func (c *campaign) others(ctx context.Context, m mutant, env string) (outcome, killer string) {
	outcome = "lives"
	of := c.ofGo
	if m.goPackage == "" {
		if c.explained[m.id] != "" {
			return outcome, ""
		}
		var err error
		if of, err = c.learned(ctx); err != nil {
			return "error: " + err.Error(), ""
		}
	}
	tests := c.order(m, of)
	size := 1
	if m.goPackage != "" {
		size = quick(tests) // most take less than the start of their program
	}
	for len(tests) > 0 && outcome == "lives" {
		batch := tests[:min(size, len(tests))]
		tests = tests[len(batch):]
		outcome, killer = c.try(batch, env)
		size = max(size, min(size*3, 40))
	}
	return outcome, killer
}

// learned runs each test of SQL once, unless that is known.
func (c *campaign) learned(ctx context.Context) (*reach, error) {
	c.learning.Lock()
	defer c.learning.Unlock()
	if c.ofSQL != nil {
		return c.ofSQL, nil
	}
	tests, err := c.suite.learn(ctx, sqlPackages, c.only, 2*c.workers, c.slow)
	if err != nil {
		return nil, err
	}
	c.ofSQL = newReach(tests, c.units)
	return c.ofSQL, nil
}

// quick is how many of the first tests take less than half a second together, and one at least.
func quick(tests []test) int {
	took := int64(0)
	for n, t := range tests {
		if took += t.Millis; took > 500 && n > 0 {
			return n
		}
	}
	return max(len(tests), 1)
}

// digest is what the result of a mutant depends on: the tests, and the cases of its unit.
func (c *campaign) digest(m mutant) string {
	if m.goPackage != "" {
		return c.suite.digest(m)
	}
	return c.suite.digest(m) + digestCases(m.unit)
}

// prepare writes the text of m for the tests to read.
func (c *campaign) prepare(m mutant) (env string, done func(), err error) {
	if m.goPackage != "" {
		return "OUTBOXGEN_MUTANT=" + m.unit, func() {}, nil
	}
	dir, err := os.MkdirTemp("", "outboxgen-mutant-")
	if err != nil {
		return "", nil, err
	}
	name := m.file
	if name == "" {
		name = m.unit + ".query"
	}
	path := filepath.Join(dir, name)
	return "OUTBOXGEN_MUTANT=" + path, func() { _ = os.RemoveAll(dir) }, os.WriteFile(path, []byte(m.text), 0o600)
}

// order returns the tests for m: those that have killed most mutants of its unit first, then the fastest, and of those the
// ones that use little else, which look more closely at it. A mutant with a
// reason is not tried on slow tests, which would cost most of the time.
func (c *campaign) order(m mutant, of *reach) []test {
	c.mu.Lock()
	defer c.mu.Unlock()
	killer, kills := c.killers[m.id], c.kills[m.unit]
	tests := of.tests(m)
	limit := int64(60_000)
	if _, ok := c.explained[m.id]; ok || !c.slow {
		limit = 6_000
	}
	tests = slices.DeleteFunc(tests, func(t test) bool {
		return t.Millis > limit || t.Slow && !c.slow || !c.only.MatchString(t.String())
	})
	weight := func(t test) int64 {
		switch {
		case t.String() == killer:
			return -1
		case kills[t.String()] > 0:
			return t.Millis / int64(4*kills[t.String()])
		}
		return t.Millis * int64(5+t.statements()) / 5
	}
	slices.SortStableFunc(tests, func(a, b test) int { return int(weight(a) - weight(b)) })
	return tests
}

var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\w+)`)

// try runs a batch of tests, by package.
func (c *campaign) try(batch []test, env string) (outcome, killer string) {
	type group struct {
		pkg  string
		slow bool
	}
	groups := map[group][]test{}
	var order []group
	for _, t := range batch {
		g := group{t.Package, t.Slow}
		if groups[g] == nil {
			order = append(order, g)
		}
		groups[g] = append(groups[g], t)
	}
	for _, g := range order {
		var names []string
		var alone time.Duration
		for _, t := range groups[g] {
			names = append(names, t.Name)
			alone += time.Duration(t.Millis) * time.Millisecond
		}
		out := c.patiently(g.pkg, "^("+strings.Join(names, "|")+")$", g.slow, 5*alone, env)
		switch {
		case out.ok:
			continue
		case slices.ContainsFunc(textual, func(s string) bool { return strings.Contains(out.output, s) }):
			if len(groups[g]) == 1 {
				continue
			}
			for _, t := range groups[g] {
				if outcome, killer := c.try([]test{t}, env); outcome != "lives" {
					return outcome, killer
				}
			}
			continue
		}
		name := "?"
		if found := failed.FindStringSubmatch(out.output); found != nil {
			name = found[1]
		} else if len(names) == 1 {
			name = names[0]
		}
		if out.hung {
			return "hung", g.pkg + "." + name
		}
		return "killed", g.pkg + "." + name
	}
	return "lives", ""
}

// needsNone reports whether the tests of a folder are of Go alone, and need no database.
func needsNone(pkg string) bool {
	return slices.ContainsFunc(goPackages, func(p goPackage) bool { return !p.database && slices.Contains(p.tests(), pkg) })
}

// patiently runs tests that usually take less than allowed.
func (c *campaign) patiently(pkg, pattern string, slow bool, allowed time.Duration, env string) outcome {
	if needsNone(pkg) {
		out := c.suite.run(pkg, pattern, slow, perTestWithoutDatabase+allowed, env)
		if !out.hung || out.busy > hardlyRun {
			return out
		}
	}
	return c.suite.run(pkg, pattern, slow, perTest+allowed, env)
}

// keep notes a result.
func (c *campaign) keep(m mutant, r result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.results[m.id] = r
	if r.Killer != "" {
		if c.kills[m.unit] == nil {
			c.kills[m.unit] = map[string]int{}
		}
		c.kills[m.unit][r.Killer]++
	}
	if !c.keeps && r.Outcome == "lives" {
		return // of these tests, but others may kill it
	}
	line, _ := json.Marshal(r) // strings and numbers
	_, _ = c.file.Write(append(line, '\n'))
}

// resume reads the results of earlier runs.
func (c *campaign) resume(path string, mutants map[string]mutant) error {
	for _, r := range readLines[result](path) {
		m, ok := mutants[r.ID]
		if !ok {
			continue
		}
		if r.Killer != "" {
			c.killers[r.ID] = r.Killer
			if c.kills[m.unit] == nil {
				c.kills[m.unit] = map[string]int{}
			}
			c.kills[m.unit][r.Killer]++
		}
		if r.Digest == c.digest(m) && !strings.HasPrefix(r.Outcome, "error") {
			c.results[r.ID] = r
		} else {
			delete(c.results, r.ID)
		}
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	c.file = file
	return err
}
