package dashboard

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// The size of the small chart, in units of its viewBox.
const (
	sparkWidth  = 120
	sparkHeight = 24
)

// chart is a series, as a small chart that works without a script, and as the data of a large one.
type chart struct {
	Title string
	Unit  string // after a number, like "/s"; "" for counts
	Line  string // the points attribute of an SVG polyline; "" if there are fewer than two points
	Text  string // the same in words
	Data  string // JSON: [[unix seconds...], [values...]]
}

func newChart(title, unit string, points []point) chart {
	c := chart{Title: title, Unit: unit, Text: "no samples yet"}
	if len(points) == 0 {
		return c
	}
	first, last := points[0], points[len(points)-1]
	most := 0.0
	for _, p := range points {
		most = math.Max(most, p.value)
	}
	c.Text = fmt.Sprintf("now %s%s, at most %s%s since %s UTC", numberText(last.value), unit, numberText(most), unit,
		first.at.UTC().Format("15:04"))
	times, values := make([]float64, len(points)), make([]float64, len(points))
	var line strings.Builder
	span := last.at.Sub(first.at).Seconds()
	for i, p := range points {
		times[i], values[i] = float64(p.at.UnixMilli())/1000, p.value
		if span > 0 {
			y := float64(sparkHeight - 1)
			if most > 0 {
				y -= p.value / most * (sparkHeight - 2)
			}
			fmt.Fprintf(&line, "%.1f,%.1f ", p.at.Sub(first.at).Seconds()/span*sparkWidth, y)
		}
	}
	c.Line = strings.TrimSpace(line.String())
	if data, err := json.Marshal([][]float64{times, values}); err == nil {
		c.Data = string(data)
	}
	return c
}

// numberText returns a number with as many digits as people read.
func numberText(v float64) string {
	switch {
	case v == math.Trunc(v) && math.Abs(v) < 1e15, v >= 100:
		return commas(int64(math.Round(v)))
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}
