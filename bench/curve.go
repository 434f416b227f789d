package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
)

// A curve says what its figures do as one number grows. Its contenders are the points, line by line.
type curve struct {
	axis   string // what grows
	points []point
}

type point struct {
	line string
	x    int
}

// measured is the run of a contender.
type measured = func(context.Context, *database) (float64, error)

// A line is one line of a curve: what at returns measures the point at x.
type line struct {
	name string
	xs   []int
	at   func(x int) measured
}

// curveOf returns the workload of a curve, of figures of which more is better. It runs only if -only names it.
func curveOf(name, title, unit, axis, about string, lines ...line) workload {
	w := workload{name: "curve-" + name, title: title, unit: unit, about: about, apart: true, few: true, curve: &curve{axis: axis}}
	for _, l := range lines {
		for _, x := range l.xs {
			w.contenders = append(w.contenders, contender{fmt.Sprintf("%s, %s", l.name, whole(x)), l.at(x)})
			w.curve.points = append(w.curve.points, point{l.name, x})
		}
	}
	return w
}

// A drawn line has the medians of a line that were measured, in the order of its x.
type drawn struct {
	Name string    `json:"name"`
	X    []int     `json:"x"`
	Y    []float64 `json:"y"`
}

// drawn returns the lines of the curve of a workload.
func (w workload) drawn(index map[string]figures) (lines []drawn) {
	if w.curve == nil {
		return nil
	}
	for i, p := range w.curve.points {
		f, there := index[w.contenders[i].name]
		if !there {
			continue
		}
		if n := len(lines); n == 0 || lines[n-1].Name != p.line {
			lines = append(lines, drawn{Name: p.line})
		}
		l := &lines[len(lines)-1]
		l.X, l.Y = append(l.X, p.x), append(l.Y, f.Median)
	}
	return lines
}

// cliff is a factor per doubling below which a step is told of by itself.
const cliff = 0.75

// slope says what a user wants to know of the line: what each doubling gives until the largest figure, what is left of it at the
// end, and where it falls steeply.
func (l drawn) slope() string {
	if len(l.X) < 2 {
		return ""
	}
	top := 0
	for i, y := range l.Y {
		if y > l.Y[top]*1.02 { // what is within the noise of the largest figure is as good, and comes earlier
			top = i
		}
	}
	var parts []string
	if top == 0 && l.Y[len(l.Y)-1] > l.Y[0]*0.98 {
		parts = append(parts, fmt.Sprintf("the same from %s to %s", whole(l.X[0]), whole(l.X[len(l.X)-1])))
	}
	if top > 0 {
		parts = append(parts, fmt.Sprintf("each doubling up to %s gives %.2f times as much", whole(l.X[top]), l.perDoubling(0, top)))
	}
	if last := len(l.X) - 1; l.Y[last] <= l.Y[top]*0.98 {
		left := l.Y[last] / l.Y[top]
		parts = append(parts, fmt.Sprintf("with %s it is %.2f of what it is with %s", whole(l.X[last]), left, whole(l.X[top])))
	}
	for i := 1; i < len(l.X); i++ {
		if f := l.perDoubling(i-1, i); f < cliff {
			parts = append(parts, fmt.Sprintf("each doubling from %s to %s leaves %.2f", whole(l.X[i-1]), whole(l.X[i]), f))
		}
	}
	return l.Name + ": " + strings.Join(parts, "; ") + "."
}

// perDoubling returns the factor of the figure for each doubling of x, from one point to another.
func (l drawn) perDoubling(from, to int) float64 {
	return math.Pow(l.Y[to]/l.Y[from], 1/math.Log2(float64(l.X[to])/float64(l.X[from])))
}

// whole formats an x.
func whole(x int) string {
	if x < 100 {
		return fmt.Sprint(x)
	}
	return number(float64(x))
}

// table writes the lines as the columns of a table.
func table(axis, unit string, lines []drawn) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n| %s |", axis)
	var xs []int
	for _, l := range lines {
		fmt.Fprintf(&b, " %s |", l.Name)
		xs = append(xs, l.X...)
	}
	b.WriteString("\n|--:|" + strings.Repeat("--:|", len(lines)) + "\n")
	slices.Sort(xs)
	for _, x := range slices.Compact(xs) {
		fmt.Fprintf(&b, "| %s |", whole(x))
		for _, l := range lines {
			if i := slices.Index(l.X, x); i >= 0 {
				fmt.Fprintf(&b, " %s |", number(l.Y[i]))
			} else {
				b.WriteString(" |")
			}
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "\nIn %s.\n", unit)
	for _, l := range lines {
		if s := l.slope(); s != "" {
			fmt.Fprintf(&b, "\n- %s", s)
		}
	}
	b.WriteString("\n")
	return b.String()
}
