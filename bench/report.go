package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// A report has the results of a run.
type report struct {
	Machine    string    `json:"machine"`
	PostgreSQL string    `json:"postgresql"`
	Started    time.Time `json:"started"`
	Runs       int       `json:"runs"`
	Results    []result  `json:"results"`
	Samples    []sample  `json:"sustained,omitempty"`
}

// comparable returns an error if the figures of another report cannot be compared with those of rep, because they are of
// another machine or another PostgreSQL.
func (rep *report) comparable(earlier *report) error {
	if earlier.Machine == rep.Machine && earlier.PostgreSQL == rep.PostgreSQL {
		return nil
	}
	return fmt.Errorf("the earlier results are of %s, PostgreSQL %s: run all workloads, or write to another folder",
		earlier.Machine, earlier.PostgreSQL)
}

// with returns rep and what an earlier report has of other workloads, in the order of all.
func (rep *report) with(earlier *report, all []workload) *report {
	byName := make(map[string]result)
	for _, r := range earlier.Results {
		if r.Measured.IsZero() {
			r.Measured = earlier.Started
		}
		byName[r.Workload] = r
	}
	for _, r := range rep.Results {
		byName[r.Workload] = r
	}
	both := *rep
	both.Results = nil
	for _, w := range all {
		if r, there := byName[w.name]; there {
			both.Results = append(both.Results, r)
		}
	}
	if len(both.Samples) == 0 {
		both.Samples = earlier.Samples
	}
	return &both
}

// readReport reads a report that was written before, nil if there is none.
func readReport(name string) (*report, error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var rep report
	if err := json.Unmarshal(text, &rep); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &rep, nil
}

func machine() string {
	return fmt.Sprintf("%d processors, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}

// number formats a figure: with two decimals below 100, else as an integer with thousands separators.
func number(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.2f", v)
	}
	digits := fmt.Sprintf("%.0f", math.Round(v))
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func (f figures) spread() string { return number(f.Min) + " to " + number(f.Max) }

func (t targetResult) what() string {
	if t.To == "" {
		return t.Of
	}
	return t.Of + " / " + t.To
}

func (t targetResult) outcome() string {
	switch {
	case t.NotMeasured:
		return "not measured"
	case t.Met:
		return "met"
	}
	return "missed"
}

func (t targetResult) value() string {
	if t.NotMeasured {
		return ""
	}
	return fmt.Sprintf("%.2f", t.Value)
}

// runs returns how often each contender ran, 0 if none was measured.
func (r result) runs() int {
	if len(r.Figures) == 0 {
		return 0
	}
	return len(r.Figures[0].Runs)
}

// when says when the result was measured, and how often.
func (r result) when() string {
	runs := "runs"
	if r.runs() == 1 {
		runs = "run"
	}
	return fmt.Sprintf("%s, %d %s.", r.Measured.Format("2 January 2006"), r.runs(), runs)
}

// text formats the result for a terminal.
func (r result) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s (%s)\n", r.Title, r.Unit)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, f := range r.Figures {
		fmt.Fprintf(w, "  %s\t%s\t%s\n", f.Contender, number(f.Median), f.spread())
	}
	for _, t := range r.Targets {
		fmt.Fprintf(w, "  %s\t%s\t%s: %s\n", t.what(), t.value(), t.Bound, t.outcome())
	}
	_ = w.Flush()
	for _, l := range r.Lines {
		fmt.Fprintf(&b, "  %s\n", l.slope())
	}
	for _, f := range r.Failures {
		fmt.Fprintf(&b, "  %s: not measured: %s\n", f.Contender, f.Error)
	}
	return b.String()
}

func (rep *report) json(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(rep)
}

func (rep *report) markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, `# Benchmarks

Written by `+"`make bench`"+`: %s, PostgreSQL %s with fsync and full_page_writes on, medians. The contenders
of a workload take turns, each on its own database. The date of each workload is below its table. Each run checks that all events were handled exactly once and are
recorded so. Figures of one machine say little about another machine: compare the ratios. A ratio is computed within a
round; the table has the median of the rounds.

![ratios](benchmarks.svg)
`, rep.Machine, rep.PostgreSQL)
	for _, r := range rep.Results {
		b.WriteString(r.markdown())
	}
	if curves := rep.curves(); len(curves) > 0 {
		b.WriteString(curvesHead)
		for _, r := range curves {
			b.WriteString(r.markdownOfCurve())
		}
	}
	if len(rep.Samples) > 0 {
		fmt.Fprint(&b, "\n### Minute by minute\n\n| minute | handled | p50 ms | p99 ms | heap MiB | goroutines | table MiB | indexes MiB |\n|--:|--:|--:|--:|--:|--:|--:|--:|\n")
		for _, s := range rep.Samples {
			fmt.Fprintf(&b, "| %d | %d | %.2f | %.2f | %.1f | %d | %.1f | %.1f |\n", s.Minute, s.Handled, s.P50, s.P99, s.HeapMiB, s.Goroutines, s.TableMiB, s.IndexMiB)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// curves returns the results that are curves.
func (rep *report) curves() (curves []result) {
	for _, r := range rep.Results {
		if r.Axis != "" {
			curves = append(curves, r)
		}
	}
	return curves
}

const curvesHead = `
## Curves

How far one database carries: one number grows, and all else stays. Written by ` + "`make bench-curves`" + `. PostgreSQL and the
processes share the processors, so a line ends at what both together can do.

![curves](benchmarks-curves.svg)
`

func (r result) markdownOfCurve() string {
	text := fmt.Sprintf("\n### %s\n\n%s\n%s\n%s\n",
		strings.ToUpper(r.Title[:1])+r.Title[1:], r.About, table(r.Axis, r.Unit, r.Lines), r.when())
	for i, f := range r.Failures {
		if i == 0 {
			text += "\nNot measured:\n\n"
		}
		text += fmt.Sprintf("- %s: %s\n", f.Contender, f.Error)
	}
	return text
}

func (r result) markdown() string {
	if r.Axis != "" {
		return "" // it stands below
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n## %s\n\n%s\n", strings.ToUpper(r.Title[:1])+r.Title[1:], r.About)
	if len(r.Figures) > 0 {
		fmt.Fprintf(&b, "\n| | %s | spread |\n|---|--:|---|\n", r.Unit)
	}
	for _, f := range r.Figures {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", f.Contender, number(f.Median), f.spread())
	}
	fmt.Fprintf(&b, "\n%s\n", r.when())
	if len(r.Failures) > 0 {
		fmt.Fprint(&b, "\nNot measured:\n\n")
	}
	for _, f := range r.Failures {
		fmt.Fprintf(&b, "- %s: %s\n", f.Contender, f.Error)
	}
	if len(r.Targets) == 0 {
		return b.String()
	}
	fmt.Fprint(&b, "\n| ratio | | target | |\n|---|--:|---|---|\n")
	for _, t := range r.Targets {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", t.what(), t.value(), t.Bound, t.outcome())
	}
	return b.String()
}
