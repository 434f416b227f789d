package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// A workload is a task that several contenders do on databases of the same kind.
type workload struct {
	name       string // for -only
	title      string
	unit       string // of the figures; more is better, unless lessIsBetter
	about      string // for the report
	contenders []contender
	targets    []target
	once       bool // takes too long to run more than once
	few        bool // takes too long to run more than three times
	apart      bool // needs modules that nothing else needs: runs only if -only names it

	lessIsBetter bool

	curve *curve // nil if the contenders are not the points of one
}

// A contender does its workload once on its own database, checks that all of it was done, and returns the figure.
type contender struct {
	name string
	run  func(ctx context.Context, db *database) (float64, error)
}

// A target is a bound on the ratio of two contenders of a workload, on their difference, or, if to is "", on one figure.
type target struct {
	of, to     string
	atLeast    float64
	atMost     float64 // 0 means none
	difference bool
}

func (t target) value(of, to float64) float64 {
	switch {
	case t.to == "":
		return of
	case t.difference:
		return of - to
	}
	return of / to
}

func (t target) bound() string {
	if t.atMost > 0 {
		return fmt.Sprintf("at most %g", rounded(t.atMost))
	}
	return fmt.Sprintf("at least %g", rounded(t.atLeast))
}

// rounded is v with two decimals.
func rounded(v float64) float64 { return math.Round(100*v) / 100 }

func (t target) met(value float64) bool {
	if t.atMost > 0 {
		return value <= t.atMost
	}
	return value >= t.atLeast
}

// A result has the results of all runs of a workload.
type result struct {
	Workload string             `json:"workload"`
	Title    string             `json:"title"`
	Unit     string             `json:"unit"`
	About    string             `json:"about"`
	Figures  []figures          `json:"figures"`
	Targets  []targetResult     `json:"targets,omitempty"`
	Failures []failure          `json:"failures,omitempty"`
	Axis     string             `json:"axis,omitempty"` // of a curve
	Lines    []drawn            `json:"lines,omitempty"`
	Measured time.Time          `json:"measured"` // the start of its run
	index    map[string]figures // by contender
}

// A failure says why a contender has no figures.
type failure struct {
	Contender string `json:"contender"`
	Error     string `json:"error"` // one line
}

// figures are the figures of one contender.
type figures struct {
	Contender string    `json:"contender"`
	Runs      []float64 `json:"runs"`
	Median    float64   `json:"median"`
	Min       float64   `json:"min"`
	Max       float64   `json:"max"`
}

type targetResult struct {
	Of    string  `json:"of"`
	To    string  `json:"to"`
	Bound string  `json:"bound"`
	Value float64 `json:"value"` // median over the rounds
	Met   bool    `json:"met"`
	// NotMeasured says that a contender of the target has failed.
	NotMeasured bool `json:"not_measured,omitempty"`
}

// runWorkload runs each contender once per round. The order rotates from round to round, so that no contender always runs
// after a cold start or a long checkpoint. A contender that fails has no figures and runs no more; the others go on. An error
// means that the run must end.
func runWorkload(ctx context.Context, w workload, rounds int, one measure, log logf) (result, error) {
	if w.once {
		rounds = 1
		w.about += " Run once."
	}
	if w.few && rounds > 3 {
		rounds = 3
		w.about += " Three runs."
	}
	runs, failed := make([][]float64, len(w.contenders)), make([]error, len(w.contenders))
	for round := range rounds {
		for i := range w.contenders {
			n := (i + round) % len(w.contenders)
			c := w.contenders[n]
			if failed[n] != nil {
				continue
			}
			log("%s: %s, %d of %d", w.title, c.name, round+1, rounds)
			figure, err := one(ctx, c)
			switch {
			case ctx.Err() != nil:
				return result{}, fmt.Errorf("%s: %s: %w", w.name, c.name, context.Cause(ctx))
			case errors.Is(err, errNoServer):
				return result{}, fmt.Errorf("%s: %s: %w", w.name, c.name, err)
			}
			if failed[n] = err; err != nil {
				log("%s: %s: not measured: %s", w.title, c.name, oneLine(err))
			}
			runs[n] = append(runs[n], figure)
		}
	}
	return summarise(w, runs, failed), nil
}

// A measure runs a contender once and returns its figure.
type measure func(context.Context, contender) (float64, error)

type logf func(format string, args ...any)

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// errNoServer ends a run: without PostgreSQL every other workload would fail too.
var errNoServer = errors.New("PostgreSQL does not answer")

// measureOn runs contenders on databases of a server.
func measureOn(server *server) measure {
	return func(ctx context.Context, c contender) (float64, error) {
		figure, err := runOne(ctx, server, c)
		if err != nil && server.admin(ctx, func(*pgx.Conn) error { return nil }) != nil {
			err = fmt.Errorf("%w: %w", errNoServer, err)
		}
		return figure, err
	}
}

func runOne(ctx context.Context, server *server, c contender) (figure float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	defer cancel()
	db, err := server.database(ctx)
	if err != nil {
		return 0, err
	}
	defer func() {
		cancel() // what a failed contender has left running gives its connections back
		if e := db.drop(context.WithoutCancel(ctx)); err == nil {
			err = e
		}
	}()
	return c.run(ctx, db)
}

// summarise computes the result of a workload from the figures of its contenders, except those that have failed.
func summarise(w workload, runs [][]float64, failed []error) result {
	r := result{Workload: w.name, Title: w.title, Unit: w.unit, About: w.about, index: map[string]figures{}}
	for n, c := range w.contenders {
		if failed[n] != nil {
			r.Failures = append(r.Failures, failure{c.name, oneLine(failed[n])})
			continue
		}
		f := figures{Contender: c.name, Runs: runs[n], Median: median(runs[n]), Min: slices.Min(runs[n]), Max: slices.Max(runs[n])}
		r.Figures = append(r.Figures, f)
		r.index[c.name] = f
	}
	if w.curve != nil {
		r.Axis, r.Lines = w.curve.axis, w.drawn(r.index)
	}
	for _, t := range w.targets {
		r.Targets = append(r.Targets, r.target(t))
	}
	return r
}

// target compares the contenders of t, round by round.
func (r result) target(t target) targetResult {
	out := targetResult{Of: t.of, To: t.to, Bound: t.bound()}
	of, measured := r.index[t.of]
	to, compared := r.index[t.to]
	if !measured || !compared && t.to != "" {
		out.NotMeasured = true
		return out
	}
	values := make([]float64, len(of.Runs))
	for i, v := range of.Runs {
		other := 0.0
		if t.to != "" {
			other = to.Runs[i]
		}
		values[i] = t.value(v, other)
	}
	out.Value = median(values)
	out.Met = t.met(out.Value)
	return out
}

// failure says which contenders of the workload have failed, in one line, "" if none.
func (r result) failure() string {
	var parts []string
	for _, f := range r.Failures {
		parts = append(parts, f.Contender+": "+f.Error)
	}
	if len(parts) == 0 {
		return ""
	}
	return r.Workload + ": " + strings.Join(parts, "; ")
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if n := len(sorted); n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[len(sorted)/2]
}
