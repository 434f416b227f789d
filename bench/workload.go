package main

import (
	"context"
	"fmt"
	"slices"
	"time"
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

	lessIsBetter bool
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
		return fmt.Sprintf("at most %g", t.atMost)
	}
	return fmt.Sprintf("at least %g", t.atLeast)
}

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
	Measured time.Time          `json:"measured"` // the start of its run
	index    map[string]figures // by contender
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
}

// runWorkload runs each contender once per round. The order rotates from round to round, so that no contender always runs
// after a cold start or a long checkpoint.
func runWorkload(ctx context.Context, server *server, w workload, rounds int, log func(format string, args ...any)) (result, error) {
	if w.once {
		rounds = 1
		w.about += " Run once."
	}
	if w.few && rounds > 3 {
		rounds = 3
		w.about += " Three runs."
	}
	runs := make([][]float64, len(w.contenders))
	for round := range rounds {
		for i := range w.contenders {
			n := (i + round) % len(w.contenders)
			c := w.contenders[n]
			log("%s: %s, %d of %d", w.title, c.name, round+1, rounds)
			figure, err := runOne(ctx, server, c)
			if err != nil {
				return result{}, fmt.Errorf("%s: %s: %w", w.name, c.name, err)
			}
			runs[n] = append(runs[n], figure)
		}
	}
	return summarise(w, runs), nil
}

func runOne(ctx context.Context, server *server, c contender) (figure float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	defer cancel()
	db, err := server.database(ctx)
	if err != nil {
		return 0, err
	}
	defer func() {
		if e := db.drop(context.WithoutCancel(ctx)); err == nil {
			err = e
		}
	}()
	return c.run(ctx, db)
}

func summarise(w workload, runs [][]float64) result {
	r := result{Workload: w.name, Title: w.title, Unit: w.unit, About: w.about, index: map[string]figures{}}
	for n, c := range w.contenders {
		f := figures{Contender: c.name, Runs: runs[n], Median: median(runs[n]), Min: slices.Min(runs[n]), Max: slices.Max(runs[n])}
		r.Figures = append(r.Figures, f)
		r.index[c.name] = f
	}
	for _, t := range w.targets {
		values := make([]float64, len(runs[0]))
		for i := range values {
			to := 0.0
			if t.to != "" {
				to = r.index[t.to].Runs[i]
			}
			values[i] = t.value(r.index[t.of].Runs[i], to)
		}
		value := median(values)
		r.Targets = append(r.Targets, targetResult{Of: t.of, To: t.to, Bound: t.bound(), Value: value, Met: t.met(value)})
	}
	return r
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if n := len(sorted); n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[len(sorted)/2]
}
