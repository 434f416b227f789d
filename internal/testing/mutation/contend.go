package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outboxgen/outboxgen/internal/testing/statements"
)

// contend looks for cases in which another session has locked a row. It tries each row of the cases in which the statement
// locks or changes several, until no mutant of a lock or an order lives.
func (h *hunt) contend(ctx context.Context) ([]statements.Case, error) {
	if h.statement.Table != "" {
		return nil, nil
	}
	var kept []statements.Case
	for _, c := range h.contended {
		found, err := h.toldContended(ctx, &c, func(subject) bool { return true })
		switch {
		case err != nil && (h.conn.IsClosed() || ctx.Err() != nil):
			return nil, err
		case err != nil:
			fmt.Printf("%s: %v\n%s", h.statement.Unit, err, statements.Format([]statements.Case{c}))
			kept = append(kept, c)
		case len(found) > 0:
			kept = append(kept, c)
		}
	}
	start, budget := time.Now(), h.budget/3
	candidates := h.candidates()
	for i, c := range slices.Concat(candidates, candidates) {
		for _, r := range c.Rows {
			if !h.locks() || ctx.Err() != nil || time.Since(start) > budget {
				return kept, ctx.Err()
			}
			locked, ok := h.key(r)
			if !ok {
				continue
			}
			one := c.Clone()
			one.Locked, one.Unindexed = []statements.Row{locked}, i >= len(candidates)
			found, err := h.toldContended(ctx, &one, lockMutant)
			if err != nil && !errors.Is(err, errTwoResults) {
				return nil, err
			}
			if len(found) > 0 {
				kept = append(kept, one)
			}
		}
	}
	return kept, nil
}

// errTwoResults says that a case did not do the same twice, for example because the machine was busy.
var errTwoResults = errors.New("a case has two results")

// locks reports whether a mutant lives that another session may show.
func (h *hunt) locks() bool { return slices.ContainsFunc(h.live, lockMutant) }

func lockMutant(m subject) bool {
	_, change, _ := strings.Cut(m.mutant.id, "[")
	change, after, _ := strings.Cut(change, "]")
	return strings.HasPrefix(change, "FOR ") || strings.HasPrefix(change, "SKIP LOCKED") || strings.HasPrefix(change, "NOWAIT") ||
		strings.Contains(after, "FOR UPDATE") || strings.Contains(after, "FOR NO KEY") || strings.HasSuffix(change, "DESC") ||
		strings.HasPrefix(change, ", ") || strings.HasSuffix(change, "-> ")
}

// candidates are the cases in which the statement locks or changes rows, those with the most first.
func (h *hunt) candidates() []statements.Case {
	count := func(c statements.Case) int {
		return strings.Count(c.Want, "locks ") + strings.Count(c.Want, "updates ") + strings.Count(c.Want, "deletes ")
	}
	var all []statements.Case
	for _, c := range append(slices.Clone(h.cases), h.rich...) {
		if count(c) > 0 {
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(a, b statements.Case) int { return min(count(b), 3) - min(count(a), 3) })
	return all[:min(len(all), 60)]
}

// key returns the key of a row, if the row says it.
func (h *hunt) key(r statements.Row) (statements.Row, bool) {
	t := h.bench.Tables()[r.Table]
	if t == nil || len(t.Key) == 0 {
		return r, false
	}
	key := statements.Row{Table: r.Table}
	for _, k := range t.Key {
		cell, ok := statements.Get(r.Cells, t.Columns[k].Name)
		if !ok || cell.Null {
			return r, false
		}
		key.Cells = append(key.Cells, cell)
	}
	return key, true
}

// toldContended executes a case with locked rows, and removes from those that live the mutants of some kind that do
// something else.
func (h *hunt) toldContended(ctx context.Context, c *statements.Case, of func(subject) bool) ([]string, error) {
	for i := range 2 {
		want, err := h.bench.Contend(ctx, h.locker, h.original.p, *c)
		if err != nil {
			return nil, err
		}
		if i > 0 && want != c.Want {
			return nil, errTwoResults
		}
		c.Want = want
	}
	if meaningless.MatchString(c.Want) {
		return nil, nil
	}
	var ids []string
	for _, m := range h.live {
		if !of(m) {
			continue
		}
		got, err := h.bench.Contend(ctx, h.locker, m.p, *c)
		if err != nil {
			return nil, err
		}
		if got != c.Want {
			ids = append(ids, m.mutant.id)
		}
	}
	h.live = slices.DeleteFunc(h.live, func(m subject) bool { return slices.Contains(ids, m.mutant.id) })
	if len(ids) > 0 {
		c.Note = noted(h.statement.Unit, c.Note, ids)
	}
	return ids, nil
}
