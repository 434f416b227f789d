package simtest

import (
	"testing"

	"github.com/outboxgen/outboxgen/internal/testing/simulation"
)

// TestRandomSchedules plays random schedules of shards: see simulation.Test.
func TestRandomSchedules(t *testing.T) {
	t.Parallel()
	simulation.Test(t, Machine())
}

// TestKeptSchedules plays the schedules in testdata/schedules, each of which has violated an invariant.
func TestKeptSchedules(t *testing.T) {
	t.Parallel()
	simulation.TestKept(t, Machine())
}

// TestControls: the invariants notice each guard that is left out.
func TestControls(t *testing.T) {
	t.Parallel()
	simulation.TestControls(t, Machine())
}

// TestSchedulesRepeat: the same seed, or the same faults, is the same schedule.
func TestSchedulesRepeat(t *testing.T) {
	t.Parallel()
	simulation.TestRepeats(t, Machine())
}

// TestScheduleShrinks: what is found is shrunk to what a person can read.
func TestScheduleShrinks(t *testing.T) {
	t.Parallel()
	simulation.TestShrinks(t, Machine(), "straggler", 12)
}
