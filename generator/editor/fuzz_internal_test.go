package editor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator"
)

// FuzzAnswers: whatever is typed before and after the cursor, every question has an answer, and edits fit into the text.
func FuzzAnswers(f *testing.F) {
	f.Add(shop, "", 5, 10)
	f.Add(shop, "      paid: {dedupe_key: \"{", 12, 20)
	f.Add("version: \"1\"\r\nnamespaces:\r\n  \U0001F600:", "\t- &a *a", 2, 3)
	f.Add("[", "{a: {b: [", 0, 1)
	f.Fuzz(func(t *testing.T, good, typed string, line, character int) {
		var file File
		file.Open(good, generator.Options{})
		at := Position{line, character}
		d := file.Open(Apply(good, Range{at, at}, typed), generator.Options{})
		for _, found := range d.Findings() {
			for _, fix := range d.Fixes(found) {
				requireFits(t, d, fix.Edits)
			}
		}
		for _, c := range d.Complete(at) {
			require.NotEmpty(t, c.Label)
		}
		FindGo([]byte(good), typed, "Placed")
		d.Hover(at)
		d.Go(at)
		d.Definition(at)
		d.References(at, true)
		d.Outline()
		d.Folds()
		d.Tokens()
		requireFits(t, d, d.Format())
		if _, _, ok := d.Renamable(at); ok {
			edits, err := d.Rename(at, "other")
			if err == nil {
				requireFits(t, d, edits)
			}
		}
	})
}

// requireFits: no edit ends before it begins.
func requireFits(t *testing.T, d *Document, edits []Edit) {
	t.Helper()
	for _, e := range edits {
		require.False(t, before(e.Range.End, e.Range.Start), "%+v", e)
		Apply(d.Text(), e.Range, e.NewText)
	}
}
