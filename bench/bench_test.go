package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
			{of: "ours", to: "floor", atMost: 1 / 0.95},
		},
	}
	r := summarise(w, [][]float64{{100, 10, 95}, {100, 20, 100}}, make([]error, 2))
	if r.Figures[0].Median != 95 || r.Figures[0].Min != 10 || r.Figures[0].Max != 100 {
		t.Fatalf("figures %+v", r.Figures[0])
	}
	for i, want := range []struct {
		value float64
		met   bool
	}{{0.95, true}, {-5, true}, {95, false}, {0.95, true}} {
		if got := r.Targets[i]; got.Value != want.value || got.Met != want.met {
			t.Errorf("target %d: %+v, want %+v", i, got, want)
		}
	}
	text := r.text()
	for _, want := range []string{"work (events/s)", "10.00 to 100", "at least 0.9: met", "at most 50: missed", "at most 1.05: met"} {
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
	for _, args := range [][]string{
		{"-runs", "0"}, {"more"}, {"-minutes", "1"}, {"-events", "1"}, {"-capacity", "10000", "-only", "drain"},
	} {
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
	rep = rep.with(earlier, all)
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
	if rep.comparable(earlier) != nil || (&report{Machine: "another", PostgreSQL: "15"}).comparable(earlier) == nil {
		t.Fatal("figures of another machine are kept")
	}
}

// fake returns a workload whose contenders return a figure, or fail.
func fake(name string, contenders ...contender) workload {
	return workload{name: name, title: "title of " + name, unit: "events/s", about: "About.", contenders: contenders}
}

func works(figure float64) contender {
	return contender{"works", func(context.Context, *database) (float64, error) { return figure, nil }}
}

func fails(err error) contender {
	return contender{"fails", func(context.Context, *database) (float64, error) { return 0, err }}
}

// withoutDatabase is a measure for fakes.
func withoutDatabase(ctx context.Context, c contender) (float64, error) { return c.run(ctx, nil) }

func newSession(t *testing.T, out *strings.Builder, all ...workload) *session {
	return &session{
		options: options{runs: 3, out: t.TempDir()}, all: all, stdout: out, log: t.Logf,
		rep: report{Machine: "m", PostgreSQL: "15", Started: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), Runs: 3},
	}
}

func (r *session) file(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(r.out, name))
	require.NoError(t, err)
	return string(text)
}

// A contender that cannot be measured is in the report with its reason. The others of its workload, and the other workloads,
// have their figures. The error has one line per failed workload.
func TestFailedWorkload(t *testing.T) {
	t.Parallel()
	some := fake("some", works(100), fails(errors.New("21 claims\nin 60 rounds")))
	some.targets = []target{{of: "works", atLeast: 1}, {of: "works", to: "fails", atLeast: 1}, {of: "fails", atLeast: 1}}
	var out strings.Builder
	r := newSession(t, &out, fake("none", fails(errors.New("no events"))), some, fake("fine", works(7)))
	err := r.run(t.Context(), r.all, withoutDatabase)
	require.EqualError(t, err, "none: fails: no events\nsome: fails: 21 claims in 60 rounds")
	require.Contains(t, out.String(), "  fails: not measured: 21 claims in 60 rounds\n")

	report := r.file(t, "benchmarks.md")
	for _, want := range []string{
		"## Title of none\n\nAbout.\n\n2 January 2026, 0 runs.\n\nNot measured:\n\n- fails: no events\n",
		"| works | 100 | 100 to 100 |\n\n2 January 2026, 3 runs.\n\nNot measured:\n\n- fails: 21 claims in 60 rounds\n",
		"| works | 100.00 | at least 1 | met |\n| works / fails |  | at least 1 | not measured |\n",
		"\n| fails |  | at least 1 | not measured |\n",
		"## Title of fine\n\nAbout.\n\n| | events/s | spread |\n|---|--:|---|\n| works | 7.00 | 7.00 to 7.00 |\n",
	} {
		require.Contains(t, report, want)
	}
	require.Equal(t, 2, strings.Count(r.file(t, "benchmarks.svg"), "not measured"))
	saved, err := readReport(filepath.Join(r.out, "benchmarks.json"))
	require.NoError(t, err)
	require.Equal(t, []failure{{"fails", "21 claims in 60 rounds"}}, saved.Results[1].Failures)
}

// A contender that has failed runs no more.
func TestFailedContenderRunsOnce(t *testing.T) {
	t.Parallel()
	n := 0
	w := fake("w", works(1), contender{"late", func(context.Context, *database) (float64, error) {
		if n++; n == 2 {
			return 0, errors.New("too fast")
		}
		return 1, nil
	}})
	result, err := runWorkload(t.Context(), w, 5, withoutDatabase, t.Logf)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Len(t, result.Figures, 1)
	require.Len(t, result.Figures[0].Runs, 5)
}

// A run that is killed has written what it has measured, next to the earlier results of the others.
func TestPartialResults(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var r *session
	looks := contender{"looks", func(context.Context, *database) (float64, error) {
		require.Contains(t, r.file(t, "benchmarks.md"), "| works | 5.00 |")
		require.Contains(t, r.file(t, "benchmarks.md"), "| works | 9.00 |")
		require.NotContains(t, r.file(t, "benchmarks.md"), "| works | 8.00 |")
		interrupt()
		return 0, errors.New("cut off")
	}}
	r = newSession(t, &out, fake("first", works(5)), fake("second", looks), fake("third", works(1)))
	earlier := *r
	require.NoError(t, earlier.run(ctx, []workload{fake("first", works(8)), fake("third", works(9))}, withoutDatabase))

	require.ErrorIs(t, r.run(ctx, r.all, withoutDatabase), context.Canceled)
	require.Contains(t, r.file(t, "benchmarks.md"), "| works | 5.00 |")
	require.Contains(t, r.file(t, "benchmarks.md"), "| works | 9.00 |")
	require.NotContains(t, r.file(t, "benchmarks.md"), "second", "an interrupt is not a failure of the workload")
	entries, err := os.ReadDir(r.out)
	require.NoError(t, err)
	require.Len(t, entries, 3, "temporary files are gone")
}

// Some workloads of another machine cannot be added to a report. All workloads replace it.
func TestReportOfAnotherMachine(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	r := newSession(t, &out, fake("first", works(5)), fake("second", works(6)))
	require.NoError(t, r.run(t.Context(), r.all[:1], withoutDatabase))
	other := *r
	other.rep = report{Machine: "another", PostgreSQL: "15"}
	other.only = []string{"second"}
	require.ErrorContains(t, other.run(t.Context(), r.all[1:], func(context.Context, contender) (float64, error) {
		t.Fatal("it is known before the first run")
		return 0, nil
	}), "benchmarks.json: the earlier results are of m, PostgreSQL 15")
	other.only = nil
	require.NoError(t, other.run(t.Context(), r.all[1:], withoutDatabase))
	require.NotContains(t, r.file(t, "benchmarks.md"), "first")
}

// A file that cannot be written completely leaves the old one.
func TestFilesAreReplaced(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "benchmarks.md")
	write := func(err error) error {
		return writeFile(name, func(w io.Writer) error {
			_, _ = io.WriteString(w, "half")
			return err
		})
	}
	require.NoError(t, os.WriteFile(name, []byte("old"), 0o600))
	require.ErrorContains(t, write(errors.New("disk full")), "disk full")
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "old", string(text))
	entries, err := os.ReadDir(filepath.Dir(name))
	require.NoError(t, err)
	require.Len(t, entries, 1, "the unfinished file is gone")
	require.NoError(t, write(nil))
	text, err = os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "half", string(text))
}

func TestFolderIsCheckedFirst(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing")
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, out := range []string{missing, file} {
		_, err := parse([]string{"-out", out}, io.Discard)
		require.ErrorContains(t, err, "-out "+out+": cannot write there: ")
	}
	folder := t.TempDir()
	_, err := parse([]string{"-out", folder}, io.Discard)
	require.NoError(t, err)
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, entries)
}

// Each name of -only must match a workload.
func TestOnly(t *testing.T) {
	t.Parallel()
	chosen, err := options{only: []string{"dra", "status"}}.selected(workloads(options{events: 10_000, history: 1000}, nil))
	require.NoError(t, err)
	require.Equal(t, "drain, drain-delete, status", names(chosen))
	for _, only := range []string{"nothing", "drain,statos", "drain,", "sustained"} {
		o, err := parse([]string{"-only", only}, io.Discard)
		require.NoError(t, err)
		_, err = o.selected(workloads(o, nil))
		require.ErrorContains(t, err, "enqueue-4, enqueue-32, ", only)
		require.ErrorContains(t, err, "sustained also needs -minutes", only)
	}
	o, err := parse([]string{"-only", "sustained", "-minutes", "2"}, io.Discard)
	require.NoError(t, err)
	chosen, err = o.selected(workloads(o, nil))
	require.NoError(t, err)
	require.Equal(t, "sustained", names(chosen))
}

// A failure on a server that answers is one of the contender. Without the server the run ends.
func TestServerThatIsGone(t *testing.T) {
	t.Parallel()
	s, err := start()
	require.NoError(t, err)
	failed := errors.New("no figure")
	_, err = measureOn(s)(t.Context(), fails(failed))
	require.ErrorIs(t, err, failed)
	require.NotErrorIs(t, err, errNoServer)
	require.NoError(t, s.stop())
	_, err = runWorkload(t.Context(), fake("w", works(1)), 1, measureOn(s), t.Logf)
	require.ErrorIs(t, err, errNoServer)
}

// TestRowsOfFilledTables: what fills the tables by statements of its own still knows their columns.
func TestRowsOfFilledTables(t *testing.T) {
	t.Parallel()
	s, err := start()
	require.NoError(t, err)
	defer func() { require.NoError(t, s.stop()) }()
	for _, w := range []workload{history(1000), status(1000), pages(1000)} {
		result, err := runWorkload(t.Context(), w, 1, measureOn(s), t.Logf)
		require.NoError(t, err)
		require.Empty(t, result.Failures, w.name)
	}
}
