package simulation

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Kept is the folder of a package where its schedules are kept.
const Kept = "testdata/schedules"

// Test plays random schedules of m for OUTBOXGEN_SIM_SECONDS, one second if it is not set. OUTBOXGEN_SIM_SEED plays that of
// one seed, and with -v tells what happens. OUTBOXGEN_SIM_SEEDS plays those of so many seeds, from 1 on, which are the same
// each time, and does not look for smaller ones.
func Test(t *testing.T, m *Machine) {
	t.Helper()
	if text := os.Getenv("OUTBOXGEN_SIM_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		r := m.Play(&Schedule{Machine: m.Name, Seed: seed, Without: os.Getenv("OUTBOXGEN_SIM_WITHOUT")}, func(at time.Duration, who, what string) {
			t.Logf("%10s %-10s %s", at.Round(time.Millisecond), who, what)
		})
		require.Nil(t, r.Violation, r.Violation)
		return
	}
	if text := os.Getenv("OUTBOXGEN_SIM_SEEDS"); text != "" {
		seeds, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		for seed := range seeds {
			v := m.Play(&Schedule{Machine: m.Name, Seed: seed + 1}, nil).Violation
			require.Nil(t, v, "seed %d: %s", seed+1, v)
		}
		return
	}
	seconds := 1.0
	if text := os.Getenv("OUTBOXGEN_SIM_SECONDS"); text != "" {
		var err error
		seconds, err = strconv.ParseFloat(text, 64)
		require.NoError(t, err)
	}
	a := NewAccount(m)
	for began := time.Now(); time.Since(began).Seconds() < seconds; {
		s := &Schedule{Machine: m.Name, Seed: uint64(time.Now().UnixNano())}
		if v := a.Play(s); v != nil {
			require.Fail(t, v.String(), Report(m, m.Shrink(s, shrinkTries)))
		}
	}
	t.Log(a)
}

// shrinkTries is how many schedules a search for a smaller one plays.
const shrinkTries = 1000

// TestKept plays the schedules that are kept in Kept: each was a violation once. It returns how many there are.
func TestKept(t *testing.T, m *Machine) (n int) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(Kept, "*.txt"))
	require.NoError(t, err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		s, err := Parse(string(text))
		require.NoError(t, err, path)
		require.Equal(t, m.Name, s.Machine, path)
		v := m.Play(s, nil).Violation
		require.Nil(t, v, "%s: %s", path, v)
	}
	return len(paths)
}

// TestControls leaves out each guard, and requires that a random schedule finds that.
func TestControls(t *testing.T, m *Machine) {
	t.Helper()
	for _, c := range m.Controls {
		found := m.Find(c, c.Seed)
		require.NotNil(t, found.Violation, "no invariant notices: %s (%s) in %d schedules", c.What, c.Name, found.Schedules)
		t.Logf("%-20s %4d schedules %8s  %s", c.Name, found.Schedules, found.Took.Round(time.Millisecond), found.Violation)
	}
}

// TestRepeats plays schedules twice, also from their text, and requires that the same happens.
func TestRepeats(t *testing.T, m *Machine) {
	t.Helper()
	for seed := range uint64(6) {
		s := &Schedule{Machine: m.Name, Seed: seed}
		first, faults := told(m, s)
		read, err := Parse(s.String())
		require.NoError(t, err)
		second, _ := told(m, read)
		require.Equal(t, first, second, "seed %d plays differently", seed)
		s.Fixed, s.Faults = true, faults
		for n := range 100_000 {
			s.Events = append(s.Events, n)
		}
		third, _ := told(m, s)
		require.Equal(t, first, third, "seed %d plays differently with its faults given", seed)
	}
}

func told(m *Machine, s *Schedule) (string, []Fault) {
	var b strings.Builder
	r := m.Play(s, func(at time.Duration, who, what string) { fmt.Fprintln(&b, at, who, what) })
	fmt.Fprintln(&b, r.Steps, r.Violation)
	return b.String(), r.Faults
}

// TestShrinks shrinks what a control finds, and requires that what is left is small and fails in the same way.
func TestShrinks(t *testing.T, m *Machine, control string, most int) {
	t.Helper()
	for _, c := range m.Controls {
		if c.Name != control {
			continue
		}
		found := m.Find(c, c.Seed)
		require.NotNil(t, found.Violation)
		s := m.Shrink(found.Schedule, shrinkTries)
		require.LessOrEqual(t, len(s.Events)+len(s.Faults), most, s.String())
		read, err := Parse(s.String())
		require.NoError(t, err)
		v := m.Play(read, nil).Violation
		require.NotNil(t, v)
		require.Equal(t, found.Violation.Invariant, v.Invariant)
		report := Report(m, read)
		require.Contains(t, report, v.Text)
		t.Log("\n" + report)
		read.Without = ""
		require.Nil(t, m.Play(read, nil).Violation, "with the guard the schedule is fine")
		return
	}
	t.Fatalf("no control %q", control)
}
