package main

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRatiosAreThoseOfEachRound(t *testing.T) {
	t.Parallel()
	w := workload{
		name: "w", title: "work", unit: "events/s",
		contenders: []contender{{name: "ours"}, {name: "floor"}},
		targets: []target{
			{of: "ours", to: "floor", atLeast: 0.9},
			{of: "ours", to: "floor", atMost: 2, difference: true},
			{of: "ours", atMost: 50},
		},
	}
	r := summarise(w, [][]float64{{100, 10, 95}, {100, 20, 100}})
	if r.Figures[0].Median != 95 || r.Figures[0].Min != 10 || r.Figures[0].Max != 100 {
		t.Fatalf("figures %+v", r.Figures[0])
	}
	for i, want := range []struct {
		value float64
		met   bool
	}{{0.95, true}, {-5, true}, {95, false}} {
		if got := r.Targets[i]; got.Value != want.value || got.Met != want.met {
			t.Errorf("target %d: %+v, want %+v", i, got, want)
		}
	}
	text := r.text()
	for _, want := range []string{"work (events/s)", "10.00 to 100", "at least 0.9: met", "at most 50: missed"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{0: "0.00", 1.234: "1.23", 123.6: "124", 1234: "1,234", 1234567: "1,234,567"} {
		if got := number(v); got != want {
			t.Errorf("%g is %s, want %s", v, got, want)
		}
	}
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-runs", "0"}, {"more"}, {"-minutes", "1"}, {"-events", "1"}, {"-only", "nothing"}} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}

// A run of some workloads keeps what the report has of the others, with its date.
func TestReportKeepsWhatWasNotRun(t *testing.T) {
	all := []workload{{name: "a"}, {name: "b"}, {name: "c"}}
	before, now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), time.Date(2026, 3, 4, 0, 0, 0, 0, time.UTC)
	one := []figures{{Runs: []float64{1, 2, 3}}}
	earlier := &report{Machine: "m", PostgreSQL: "15", Started: before, Results: []result{{Workload: "a", Title: "x", Figures: one}, {Workload: "c", Title: "y", Figures: one}, {Workload: "gone", Title: "z"}}}
	rep := &report{Machine: "m", PostgreSQL: "15", Started: now, Results: []result{{Workload: "b", Title: "x", Figures: one, Measured: now}, {Workload: "c", Title: "y", Figures: one, Measured: now}}}
	if err := rep.keep(earlier, all); err != nil {
		t.Fatal(err)
	}
	var names []string
	var dates []time.Time
	for _, r := range rep.Results {
		names, dates = append(names, r.Workload), append(dates, r.Measured)
	}
	if !slices.Equal(names, []string{"a", "b", "c"}) || !slices.Equal(dates, []time.Time{before, now, now}) {
		t.Fatal(names, dates)
	}
	var b strings.Builder
	if err := rep.markdown(&b); err != nil {
		t.Fatal(err)
	}
	if strings.Count(b.String(), "\n2 January 2026, 3 runs.\n") != 1 || strings.Count(b.String(), "\n4 March 2026, 3 runs.\n") != 2 {
		t.Fatal(b.String())
	}
	if err := (&report{Machine: "another", PostgreSQL: "15"}).keep(earlier, all); err == nil {
		t.Fatal("figures of another machine are kept")
	}
}
