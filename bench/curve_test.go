package main

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// at returns a line of figures that are known.
func at(name string, figures map[int]float64, xs ...int) line {
	return line{name, xs, func(x int) measured {
		return func(context.Context, *database) (float64, error) {
			if figures[x] == 0 {
				return 0, errors.New("no server")
			}
			return figures[x], nil
		}
	}}
}

// TestCurve: the report has a table of the lines, their slopes and a picture. A point that fails is left out, with its reason.
func TestCurve(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	up := at("grows <fast>", map[int]float64{1: 100, 2: 200, 4: 400, 8: 404, 16: 101}, 1, 2, 4, 8, 16)
	flat := at("stays", map[int]float64{1: 50, 1000: 50}, 1, 10, 1000)
	w := curveOf("things", "more things", "events/s", "things", "About.", up, flat)
	s := newSession(t, &out, fake("other", works(1)), w)
	err := s.run(t.Context(), []workload{w, fake("other", works(1))}, withoutDatabase)
	require.EqualError(t, err, "curve-things: stays, 10: no server")

	page := s.file(t, "benchmarks.md")
	require.Contains(t, page, "![curves](benchmarks-curves.svg)\n\n### More things\n\nAbout.")
	require.Equal(t, 1, strings.Count(page, "More things"))
	require.Less(t, strings.Index(page, "Title of other"), strings.Index(page, "More things"), "curves stand at the end")
	require.Contains(t, page, "| things | grows <fast> | stays |\n|--:|--:|--:|\n| 1 | 100 | 50.00 |\n| 2 | 200 | |\n")
	require.Contains(t, page, "| 1,000 | | 50.00 |\n")
	require.Contains(t, page, "- stays, 10: no server\n")
	slope := "grows <fast>: each doubling up to 4 gives 2.00 times as much; with 16 it is 0.25 of what it is with 4; each doubling from 8 to 16 leaves 0.25."
	require.Contains(t, page, "- "+slope+"\n")
	require.Contains(t, page, "- stays: the same from 1 to 1,000.\n")
	require.Contains(t, out.String(), slope)
	require.NotContains(t, s.file(t, "benchmarks.svg"), "more things")

	picture := s.file(t, "benchmarks-curves.svg")
	for xml := xml.NewDecoder(strings.NewReader(picture)); ; {
		_, err := xml.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
	require.Equal(t, 7, strings.Count(picture, "<circle"))
	require.Contains(t, picture, ">1k</text>")
}

// TestReportKeepsCurves: a run without curves keeps those of the report.
func TestReportKeepsCurves(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	w := curveOf("things", "more things", "events/s", "things", "About.", at("grows", map[int]float64{1: 1, 2: 2}, 1, 2))
	other := fake("other", works(1))
	s := newSession(t, &out, other, w)
	require.NoError(t, s.run(t.Context(), []workload{w}, withoutDatabase))
	again := newSession(t, &out, other, w)
	again.out = s.out
	require.NoError(t, again.run(t.Context(), []workload{other}, withoutDatabase))
	require.Contains(t, s.file(t, "benchmarks.md"), "grows: each doubling up to 2 gives 2.00 times as much.")
	require.Contains(t, s.file(t, "benchmarks-curves.svg"), "more things")
}

// TestCurvesRunOnlyIfNamed: they take longer than all other workloads together.
func TestCurvesRunOnlyIfNamed(t *testing.T) {
	t.Parallel()
	all := workloads(options{events: 10_000, history: 1000}, nil)
	chosen, err := options{}.selected(all)
	require.NoError(t, err)
	named, err := options{only: []string{"curve"}}.selected(all)
	require.NoError(t, err)
	require.Len(t, named, 7)
	for _, w := range chosen {
		require.Nil(t, w.curve)
	}
}
