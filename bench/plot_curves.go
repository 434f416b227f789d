package main

import (
	"fmt"
	"html"
	"io"
	"math"
	"strconv"
	"strings"
)

// A panel is the picture of one curve. Two stand side by side.
const (
	panelWidth, panelHeight = 430, 290
	plotLeft, plotTop       = 70, 60
	plotRight, plotBottom   = 410, 240
)

// colours are those of the lines of a curve.
var colours = [...]string{"#2f6fdb", "#d9730d", "#2e8540"}

// svgOfCurves draws each curve as a panel: what grows on a logarithmic axis, and the figure on one that begins at 0.
func (rep *report) svgOfCurves(w io.Writer) error {
	var b strings.Builder
	curves := rep.curves()
	for i, r := range curves {
		fmt.Fprintf(&b, `<g transform="translate(%d,%d)">`+"\n", i%2*panelWidth, i/2*panelHeight)
		r.panel(&b)
		b.WriteString("</g>\n")
	}
	height := (len(curves) + 1) / 2 * panelHeight
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">
<rect width="100%%" height="100%%" fill="white"/>
%s</svg>
`, 2*panelWidth, height, b.String())
	return err
}

func (r result) panel(b *strings.Builder) {
	least, most, top := math.MaxInt, 1, 0.0
	for _, l := range r.Lines {
		for i := range l.X {
			least, most, top = min(least, l.X[i]), max(most, l.X[i]), max(top, l.Y[i])
		}
	}
	if top == 0 {
		return // nothing was measured
	}
	step := tick(top)
	top = math.Ceil(top/step) * step
	at := func(x int) float64 {
		if least == most {
			return plotLeft
		}
		return plotLeft + (plotRight-plotLeft)*math.Log(float64(x)/float64(least))/math.Log(float64(most)/float64(least))
	}
	height := func(y float64) float64 { return plotBottom - (plotBottom-plotTop)*y/top }
	fmt.Fprintf(b, `<text x="10" y="20" font-weight="bold">%s (%s)</text>`+"\n", html.EscapeString(r.Title), html.EscapeString(r.Unit))
	for y := 0.0; y <= top; y += step {
		fmt.Fprintf(b, `<path d="M%d %.1fH%d" stroke="#e1e5ea"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			plotLeft, height(y), plotRight, plotLeft-6, height(y)+4, round(y))
	}
	drawn := map[int]bool{}
	for n, l := range r.Lines {
		colour := colours[n%len(colours)]
		var path strings.Builder
		pen := "M"
		for i, x := range l.X {
			fmt.Fprintf(&path, "%s%.1f %.1f", pen, at(x), height(l.Y[i]))
			pen = "L"
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`, at(x), height(l.Y[i]), colour)
			if !drawn[x] {
				drawn[x] = true
				fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", at(x), plotBottom+16, short(x))
			}
		}
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", path.String(), colour)
		fmt.Fprintf(b, `<text x="%d" y="38" fill="%s">%s</text>`+"\n", 10+n*150, colour, html.EscapeString(l.Name))
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (plotLeft+plotRight)/2, plotBottom+34, html.EscapeString(r.Axis))
}

// tick returns the distance of about four lines of an axis that ends at top: 1, 2 or 5 times a power of ten.
func tick(top float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(top/4)))
	for _, n := range [...]float64{1, 2, 5} {
		if top/(n*power) <= 5 {
			return n * power
		}
	}
	return 10 * power
}

// round formats a multiple of a tick.
func round(y float64) string {
	if y < 100 {
		return strconv.FormatFloat(y, 'g', 3, 64)
	}
	return number(y)
}

// short formats an x in little room.
func short(x int) string {
	switch {
	case x >= 1_000_000 && x%1_000_000 == 0:
		return fmt.Sprintf("%dM", x/1_000_000)
	case x >= 1000 && x%1000 == 0:
		return fmt.Sprintf("%dk", x/1000)
	}
	return fmt.Sprint(x)
}
