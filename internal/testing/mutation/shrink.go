package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/internal/testing/statements"
)

// stable reports whether the statement always does the same with a case: in another moment, and whatever the order in which
// the rows were written.
func (h *hunt) stable(ctx context.Context, c statements.Case, want string) (bool, error) {
	turned := c.Clone()
	slices.Reverse(turned.Rows)
	for _, one := range []statements.Case{turned, c} {
		got, ok, err := h.original.do(ctx, h, one, true)
		if err != nil || !ok || got != want {
			return false, err
		}
	}
	return true, nil
}

// shrink leaves out what the mutants of found need not to be told apart.
func (h *hunt) shrink(ctx context.Context, c statements.Case, found []string) (statements.Case, error) {
	whole := c
	var of []subject
	for _, m := range h.live {
		if _, endless := h.endless[m.mutant.id]; slices.Contains(found, m.mutant.id) && !endless {
			of = append(of, m)
		}
	}
	if len(of) == 0 {
		return c, nil
	}
	if len(of) > 12 {
		of = of[:12] // the others are tried with what is left
	}
	holds := func(smaller *statements.Case) (bool, error) {
		want, ok, err := h.original.do(ctx, h, *smaller, true)
		if err != nil || !ok || meaningless.MatchString(want) {
			return false, err
		}
		smaller.Want = want
		results, err := h.all25(ctx, of, *smaller)
		if err != nil {
			return false, err
		}
		return !slices.ContainsFunc(results, func(got string) bool { return got == "" || got == want }), nil
	}
	attempt := func(smaller statements.Case) error {
		ok, err := holds(&smaller)
		if ok {
			c = smaller
		}
		return err
	}
	if c.Unindexed {
		smaller := c.Clone()
		smaller.Unindexed = false
		if err := attempt(smaller); err != nil {
			return c, err
		}
	}
	for i := len(c.Rows) - 1; i >= 0; i-- {
		smaller := c.Clone()
		smaller.Rows = slices.Delete(smaller.Rows, i, i+1)
		if err := attempt(smaller); err != nil {
			return c, err
		}
	}
	for i := range c.Rows {
		for k := len(c.Rows[i].Cells) - 1; k >= 0; k-- {
			smaller := c.Clone()
			smaller.Rows[i].Cells = slices.Delete(smaller.Rows[i].Cells, k, k+1)
			if err := attempt(smaller); err != nil {
				return c, err
			}
		}
	}
	for k := len(c.Args) - 1; k >= 0; k-- {
		smaller := c.Clone()
		if smaller.Args[k].Value == "{}" || h.statement.Table != "" {
			smaller.Args = slices.Delete(smaller.Args, k, k+1)
		} else if strings.HasPrefix(smaller.Args[k].Value, "{") && h.worlds.arrays[smaller.Args[k].Name] {
			smaller.Args[k].Value = "{}"
		} else {
			continue
		}
		if err := attempt(smaller); err != nil {
			return c, err
		}
	}
	c.Args = slices.DeleteFunc(slices.Clone(c.Args), func(a statements.Cell) bool { return a.Value == "{}" && h.worlds.arrays[a.Name] || a.Null })
	ok, err := h.stable(ctx, c, c.Want)
	if err == nil && !ok {
		c = whole
		_, _, err = h.original.do(ctx, h, c, true)
	}
	return c, err
}

// fewest chooses cases greedily until they tell apart what all do, and notes what each shows.
func (h *hunt) fewest(ctx context.Context) ([]statements.Case, error) {
	told := make([][]string, len(h.cases))
	for i, c := range h.cases {
		want, ok, err := h.original.do(ctx, h, c, true)
		if err != nil {
			return nil, err
		}
		if !ok || want != c.Want {
			fmt.Printf("%s: a case has two results, %s and\n%s", h.statement.Unit, want, statements.Format([]statements.Case{c}))
			continue
		}
		if told[i], err = h.told(ctx, i, c, h.all); err != nil {
			return nil, err
		}
	}
	var kept []statements.Case
	covered := map[string]bool{}
	for {
		best, most := -1, 0
		for i := range told {
			n := 0
			for _, id := range told[i] {
				if !covered[id] {
					n++
				}
			}
			if n > most {
				best, most = i, n
			}
		}
		if best < 0 {
			return kept, nil
		}
		c := h.cases[best].Clone()
		own := slices.DeleteFunc(slices.Clone(told[best]), func(id string) bool { return covered[id] })
		c.Note = noted(h.statement.Unit, c.Note, own)
		for _, id := range own {
			covered[id] = true
		}
		kept = append(kept, c)
	}
}
