package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// sqlPackages are the folders of the packages whose tests use queries and schema.
var sqlPackages = []string{
	"queue", "listener", "admin", "inbox", "outbox", "operation", "outboxtest", "migrate", "worker", "dashboard", "consume/receive",
	"internal/machine/heartbeat", "internal/postgres/advisory", "internal/postgres/topiclane",
	"internal/testing/runtimetest", "internal/testing/statements",
}

// leftOut are tests that no mutant may be killed by, with the reason.
var leftOut = map[string]string{
	"internal/testing/statements.TestCases":                 "the cases are executed before all tests",
	"internal/testing/statements.TestCasesFindChanges":      "says of the cases that they notice",
	"internal/testing/statements.TestEachStatementHasCases": "says of the cases that they are there",
	"internal/testing/statements.TestFilesOfCases":          "says of the files of the cases that they can be read",

	"migrate.TestExportFormats":       "compares the text of migrations",
	"migrate.TestExportAtlasSum":      "compares the hash of migrations",
	"payload.TestChecksDoNotAllocate": "counts allocations, to which the switches of mutants add",
	"eventkey.TestNewKeyAllocations":  "counts allocations, to which the switches of mutants add",

	"queue/internal/core/simtest.TestControls":           "says of the simulation, not of the core, that it notices",
	"queue/internal/core/simtest.TestSchedulesRepeat":    "says of the simulation, not of the core, that it repeats",
	"queue/internal/core/simtest.TestScheduleShrinks":    "says of the simulation, not of the core, that it shrinks",
	"listener/internal/core/simtest.TestControls":        "says of the simulation, not of the core, that it notices",
	"listener/internal/core/simtest.TestSchedulesRepeat": "says of the simulation, not of the core, that it repeats",
	"listener/internal/core/simtest.TestScheduleShrinks": "says of the simulation, not of the core, that it shrinks",
}

// schedules is how many schedules a simulation plays for a mutant: those of the first seeds, so that the result is always
// the same.
const schedules = 40

// test is what the tool knows about a test.
type test struct {
	Package string // folder
	Name    string
	Program string // the digest of the test binary when it was tried
	Slow    bool   // it is left out by -short
	Millis  int64
	Hits    []string // what it uses: "query EventClaim", "table queue", "function enqueue", "go-0123abcd"
}

func (t test) String() string { return t.Package + "." + t.Name }

// statements is how many queries t uses.
func (t test) statements() int {
	n := 0
	for _, hit := range t.Hits {
		if strings.HasPrefix(hit, "query ") {
			n++
		}
	}
	return n
}

// suite is the tests, as programs in which every mutant can be switched on.
type suite struct {
	dir      string            // an absolute path, for what is built and known
	url      string            // of the server; "" without one
	packages []string          // the folders whose tests are run
	binaries map[string]string // by package
	digests  map[string]string // of the binaries, by package
}

// newSuite returns the tests that may kill mutants: those of SQL if one is of SQL, and those of the packages that the
// others change.
func newSuite(dir string, mutants []mutant) (s *suite, database bool) {
	s = &suite{dir: dir, binaries: map[string]string{}, digests: map[string]string{}}
	if slices.ContainsFunc(mutants, func(m mutant) bool { return m.goPackage == "" }) {
		s.packages, database = slices.Clone(sqlPackages), true
	}
	for _, p := range goPackages {
		if slices.ContainsFunc(mutants, func(m mutant) bool { return m.goPackage == p.dir }) {
			s.packages, database = append(s.packages, p.tests()...), database || p.database
		}
	}
	slices.Sort(s.packages)
	s.packages = slices.Compact(s.packages)
	return s, database
}

func (s *suite) binary(pkg string) string { return s.binaries[pkg] }

// build compiles the tests, as many packages at a time as have different names.
func (s *suite) build(overlay string) error {
	var groups [][]string
	for _, pkg := range s.packages {
		k := slices.IndexFunc(groups, func(group []string) bool {
			return !slices.ContainsFunc(group, func(other string) bool { return filepath.Base(other) == filepath.Base(pkg) })
		})
		if k < 0 {
			k, groups = len(groups), append(groups, nil)
		}
		groups[k] = append(groups[k], pkg)
		s.binaries[pkg] = filepath.Join(s.dir, fmt.Sprintf("tests%d", k+1), filepath.Base(pkg)+".test")
	}
	for k, group := range groups {
		out := filepath.Join(s.dir, fmt.Sprintf("tests%d", k+1))
		if err := os.MkdirAll(out, 0o700); err != nil {
			return err
		}
		args := []string{"test", "-vet=off", "-tags", "mutation", "-overlay", overlay, "-c", "-o", out + string(filepath.Separator)}
		for _, pkg := range group {
			args = append(args, "./"+pkg)
		}
		if text, err := exec.Command(goCommand(), args...).CombinedOutput(); err != nil {
			return fmt.Errorf("build the tests of %s: %w\n%s", strings.Join(group, ", "), err, text)
		}
	}
	for _, pkg := range s.packages {
		program, err := os.ReadFile(s.binary(pkg))
		if err != nil {
			return err
		}
		s.digests[pkg] = fmt.Sprintf("%x", sha256.Sum256(program))[:16]
	}
	return nil
}

// digest tells apart the programs that decide about m: a result of other ones is of no use.
func (s *suite) digest(m mutant) string {
	folders := sqlPackages
	if p, ok := m.decides(); ok {
		folders = p.tests()
	}
	sum := sha256.New()
	for _, pkg := range folders {
		_, _ = io.WriteString(sum, s.digests[pkg]) // a hash never fails
	}
	return fmt.Sprintf("%x", sum.Sum(nil))[:16]
}

func goCommand() string {
	if name := os.Getenv("GO"); name != "" {
		return name
	}
	return "go"
}

// outcome is how a run of tests ended.
type outcome struct {
	ok     bool
	hung   bool
	output string
	took   time.Duration
	busy   time.Duration // of the processor
}

// run runs tests of one package with an environment variable.
func (s *suite) run(pkg, pattern string, slow bool, timeout time.Duration, env string) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), timeout+30*time.Second)
	defer cancel()
	args := []string{"-test.run", pattern, "-test.failfast", "-test.parallel", "4", "-test.timeout", timeout.String()}
	if !slow {
		args = append(args, "-test.short")
	}
	if env == "" || strings.HasPrefix(env, "OUTBOXGEN_MUTATION_TRACE") {
		args = append(args, "-test.v")
	}
	cmd := exec.CommandContext(ctx, s.binary(pkg), args...)
	cmd.Dir = pkg
	cmd.Env = append(os.Environ(), "OUTBOXGEN_TEST_DATABASE_URL="+s.url, fmt.Sprint("OUTBOXGEN_SIM_SEEDS=", schedules), env)
	// Output to a file, because a process that outlives the test would keep a pipe open.
	out, err := os.CreateTemp("", "outboxgen-mutation-")
	if err != nil {
		return outcome{output: err.Error()}
	}
	defer func() {
		_ = out.Close()
		_ = os.Remove(out.Name())
	}()
	cmd.Stdout, cmd.Stderr = out, out
	start := time.Now()
	err = cmd.Run()
	text, _ := os.ReadFile(out.Name()) // without it the outcome is still right
	return outcome{
		ok:     err == nil,
		hung:   ctx.Err() != nil || strings.Contains(string(text), "panic: test timed out"),
		output: string(text), took: time.Since(start), busy: busy(cmd.ProcessState),
	}
}

// busy is the time of the processor that a process took; 0 if it did not start.
func busy(p *os.ProcessState) time.Duration {
	if p == nil {
		return 0
	}
	return p.UserTime() + p.SystemTime()
}

// list returns the names of the tests of a package.
func (s *suite) list(pkg string) ([]string, error) {
	cmd := exec.Command(s.binary(pkg), "-test.list", "^(Test|Example)")
	cmd.Dir = pkg
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests of %s: %w", pkg, err)
	}
	return strings.Fields(string(out)), nil
}

// packagesOfGo returns the folders of the packages whose tests are run on mutants of Go.
func (s *suite) packagesOfGo() []string {
	var folders []string
	for _, p := range goPackages {
		for _, pkg := range p.tests() {
			if slices.Contains(s.packages, pkg) && !slices.Contains(folders, pkg) {
				folders = append(folders, pkg)
			}
		}
	}
	return folders
}

// learn runs each test of some packages that is not known yet once, alone, and notes what it uses. A test that fails now, with texts that
// are changed in a comment only, compares texts: it is an error unless leftOut has it.
func (s *suite) learn(ctx context.Context, packages []string, only *regexp.Regexp, workers int, slow bool) (tests []test, err error) {
	known := map[string]test{}
	path := filepath.Join(s.dir, "tests.jsonl")
	for _, t := range readLines[test](path) {
		known[t.String()] = t
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	again := s.packagesOfGo() // their tests take so little that they are tried again in each new program
	var mu sync.Mutex
	var wrong []string
	var wait []test
	for _, pkg := range packages {
		names, err := s.list(pkg)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			t := test{Package: pkg, Name: name, Program: s.digests[pkg]}
			if leftOut[t.String()] != "" || !only.MatchString(t.String()) {
				continue
			}
			if k, ok := known[t.String()]; ok && (!k.Slow || k.Millis > 0 || !slow) && (k.Program == s.digests[pkg] || !slices.Contains(again, pkg)) {
				tests = append(tests, k)
				continue
			}
			wait = append(wait, t)
		}
	}
	total, done := len(wait), 0
	parallel(workers, wait, func(t test) {
		if ctx.Err() != nil {
			return
		}
		t, failed := s.trace(t, slow)
		if ctx.Err() != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if done++; done%50 == 0 || done == total {
			fmt.Printf("learned what %d of %d tests use\n", done, total)
		}
		if failed != "" {
			wrong = append(wrong, t.String())
			fmt.Printf("%s fails with texts that differ in a comment:\n%s\n", t, failed)
			return
		}
		tests = append(tests, t)
		line, _ := json.Marshal(t) // strings and numbers
		_, _ = file.Write(append(line, '\n'))
	})
	if err := errors.Join(file.Close(), ctx.Err()); err != nil {
		return nil, err
	}
	if len(wrong) > 0 {
		fmt.Printf("%d tests fail without a mutant, and are left out of this run: %s\n", len(wrong), strings.Join(wrong, ", "))
	}
	return tests, nil
}

// trace runs a test alone, first with -short. A slow one runs again without it, if it may.
func (s *suite) trace(t test, slow bool) (test, string) {
	const most = 4 * time.Minute
	trace := filepath.Join(s.dir, "trace-"+strings.ReplaceAll(t.Package, "/", "_")+"-"+t.Name)
	defer func() { _ = os.Remove(trace) }()
	env := "OUTBOXGEN_MUTATION_TRACE=" + trace
	out := s.run(t.Package, "^"+t.Name+"$", false, most, env)
	if out.ok && strings.Contains(out.output, "--- SKIP: "+t.Name) {
		if t.Slow = true; !slow {
			return t, ""
		}
		_ = os.Remove(trace)
		out = s.run(t.Package, "^"+t.Name+"$", true, most, env)
	}
	if !out.ok {
		return t, tail(out.output)
	}
	t.Millis = out.took.Milliseconds()
	text, _ := os.ReadFile(trace) // a test that uses nothing has none
	t.Hits = strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
	slices.Sort(t.Hits)
	t.Hits = slices.Compact(t.Hits)
	return t, ""
}

func tail(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "level=INFO") && !strings.HasPrefix(line, "=== ") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-25):], "")
}

// parallel calls do for each of list in a number of goroutines, and waits.
func parallel[T any](workers int, list []T, do func(T)) {
	work := make(chan T)
	var wait sync.WaitGroup
	for range workers {
		wait.Go(func() {
			for v := range work {
				do(v)
			}
		})
	}
	for _, v := range list {
		work <- v
	}
	close(work)
	wait.Wait()
}

// readLines reads a file of JSON lines. What is not one, after a run that was killed, is left out.
func readLines[T any](path string) []T {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer func() { _ = file.Close() }()
	var all []T
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var v T
		if json.Unmarshal(lines.Bytes(), &v) == nil {
			all = append(all, v)
		}
	}
	return all
}
