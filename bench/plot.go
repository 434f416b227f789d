package main

import (
	"fmt"
	"html"
	"io"
	"strings"
)

const (
	plotWidth  = 860
	labelWidth = 250
	barHeight  = 18
)

// svg draws each workload as bars, scaled to its largest figure, with the median at the end of each bar.
func (rep *report) svg(w io.Writer) error {
	var b strings.Builder
	y := 10
	for _, r := range rep.Results {
		if r.Axis != "" {
			continue // in another picture
		}
		y += 24
		fmt.Fprintf(&b, `<text x="10" y="%d" font-weight="bold">%s (%s)</text>`+"\n", y, html.EscapeString(r.Title), html.EscapeString(r.Unit))
		y += 8
		most := 0.0
		for _, f := range r.Figures {
			most = max(most, f.Median)
		}
		for _, f := range r.Figures {
			length := 1.0
			if most > 0 {
				length = max(1, f.Median/most*(plotWidth-labelWidth-110))
			}
			colour := "#9aa5b1"
			if ours(f.Contender) {
				colour = "#2f6fdb"
			}
			fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text><rect x="%d" y="%d" width="%.0f" height="%d" fill="%s"/><text x="%.0f" y="%d">%s</text>`+"\n",
				labelWidth-8, y+13, html.EscapeString(f.Contender), labelWidth, y, length, barHeight-4, colour, labelWidth+length+6, y+13, number(f.Median))
			y += barHeight
		}
		for _, f := range r.Failures {
			fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text><text x="%d" y="%d" fill="#9aa5b1">not measured</text>`+"\n",
				labelWidth-8, y+13, html.EscapeString(f.Contender), labelWidth, y+13)
			y += barHeight
		}
	}
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="white"/>
%s</svg>
`, plotWidth, y+20, b.String())
	return err
}

// ours reports whether a bar is outboxgen's, and not that of a peer or a baseline.
func ours(contender string) bool {
	for _, prefix := range [...]string{"dispatcher", "Enqueue", "Queue", "one listener", "five listeners", "doorbell", "Claim"} {
		if strings.HasPrefix(contender, prefix) {
			return true
		}
	}
	return strings.HasSuffix(contender, "topics")
}
