package simulation

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Main is the command of a machine. It plays random schedules, then leaves out each guard. It prints an account to standard
// output, whose last line is JSON for Join, and what it is doing to standard error. It returns the status of the process.
func Main(m *Machine) int {
	c := &campaign{m: m, out: os.Stdout, progress: os.Stderr}
	flag.DurationVar(&c.time, "time", time.Minute, "how long to play")
	flag.Uint64Var(&c.first, "seed", uint64(time.Now().UnixMicro()), "the seed of the first schedule; the next ones have the next numbers")
	flag.IntVar(&c.schedules, "schedules", 0, "play that many, however long it takes")
	flag.Uint64Var(&c.told, "tell", 0, "play the schedule of this seed, and tell what happens")
	flag.StringVar(&c.without, "without", "", "leave out this guard")
	flag.StringVar(&c.file, "file", "", "play the schedule in this file, and tell what happens")
	flag.BoolVar(&c.shrink, "shrink", false, "shrink it first")
	flag.StringVar(&c.only, "control", "", "try only this control")
	flag.StringVar(&c.keep, "keep", "", "keep what fails in this folder")
	flag.Parse()
	switch {
	case c.file != "":
		text, err := os.ReadFile(c.file)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
		s, err := Parse(string(text))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
		return c.tell(s)
	case c.told != 0:
		return c.tell(&Schedule{Machine: m.Name, Seed: c.told, Without: c.without})
	}
	return c.play()
}

// mostViolations is how many schedules are shrunk and printed.
const mostViolations = 3

// everyKind is how long a run takes in which each kind of fault happens.
const everyKind = 10 * time.Second

type campaign struct {
	m             *Machine
	out, progress io.Writer
	time          time.Duration
	first, told   uint64
	schedules     int
	without       string
	file, keep    string
	shrink        bool
	only          string
}

// tell plays one schedule and prints what happens in it.
func (c *campaign) tell(s *Schedule) int {
	if c.shrink {
		s = c.m.Shrink(s, shrinkTries)
	}
	fmt.Fprint(c.out, Report(c.m, s))
	if v := c.m.Play(s, nil).Violation; v != nil {
		fmt.Fprintln(c.out, v)
		return 1
	}
	return 0
}

func (c *campaign) play() (status int) {
	a := NewAccount(c.m)
	fmt.Fprintf(c.out, "%s from seed %d:\n", c.m.Name, c.first)
	told := time.Now()
	for began := time.Now(); c.goesOn(a, began); {
		s := &Schedule{Machine: c.m.Name, Seed: c.first + uint64(a.Schedules), Without: c.without}
		if v := a.Play(s); v != nil {
			c.onViolation(s, v)
		}
		if time.Since(told) > 5*time.Second {
			told = time.Now()
			fmt.Fprintf(c.progress, "%s: %d schedules, %d steps, %d violations\n", c.m.Name, a.Schedules, a.Steps, a.Violations)
		}
	}
	fmt.Fprint(c.out, a)
	fmt.Fprintf(c.out, "%s without one guard each:\n", c.m.Name)
	for _, control := range c.m.Controls {
		if c.only != "" && c.only != control.Name {
			continue
		}
		a.Controls++
		f := c.m.Find(control, 1)
		if f.Violation != nil {
			a.Found++
		}
		fmt.Fprintln(c.out, "  "+f.String())
	}
	if a.Violations > 0 || a.Found < a.Controls {
		status = 1
	}
	if missing := a.Missing(); len(missing) > 0 && a.Playing >= everyKind && c.schedules == 0 {
		fmt.Fprintf(c.out, "these faults have not happened, so nothing is known of them: %v\n", missing)
		status = 1
	}
	line, err := json.Marshal(a)
	if err != nil {
		fmt.Fprintln(c.progress, err)
		return 2
	}
	fmt.Fprintln(c.out, string(line))
	return status
}

// goesOn reports whether another schedule is played.
func (c *campaign) goesOn(a *Account, began time.Time) bool {
	switch {
	case a.Violations >= mostViolations:
		return false
	case c.schedules > 0:
		return a.Schedules < c.schedules
	}
	return time.Since(began) < c.time
}

// onViolation shrinks what has failed, prints it and keeps it.
func (c *campaign) onViolation(s *Schedule, v *Violation) {
	fmt.Fprintf(c.progress, "%s: seed %d: %s\nshrinking\n", c.m.Name, s.Seed, v)
	report := Report(c.m, c.m.Shrink(s, shrinkTries))
	fmt.Fprintln(c.out, report)
	if c.keep == "" {
		fmt.Fprintf(c.out, "KEEP=1 keeps it as a test, in %s of the package\n", Kept)
		return
	}
	path := filepath.Join(c.keep, fmt.Sprintf("%s-%d.txt", v.Invariant, s.Seed))
	if err := os.MkdirAll(c.keep, 0o755); err != nil {
		fmt.Fprintln(c.progress, err)
		return
	}
	if err := os.WriteFile(path, []byte(report), 0o644); err != nil {
		fmt.Fprintln(c.progress, err)
		return
	}
	fmt.Fprintln(c.out, "kept as", path)
}
