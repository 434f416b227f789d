package model_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/model"
)

// FuzzDecode: any bytes give a Model, or findings that each have a place, a known rule and one clean line. The same bytes
// give the same result.
func FuzzDecode(f *testing.F) {
	files, err := filepath.Glob("../testdata/*/outbox.yaml")
	require.NoError(f, err)
	more, err := filepath.Glob("testdata/*.yaml")
	require.NoError(f, err)
	for _, name := range append(append(files, more...), "../spec/testdata/full.yaml") {
		source, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(source)
	}
	rules := make(map[diag.Rule]bool)
	for _, rule := range diag.Rules() {
		rules[rule.ID] = true
	}
	f.Fuzz(func(t *testing.T, source []byte) {
		m, findings := model.Load(source, "outbox.yaml")
		require.Equal(t, m == nil, findings.HasErrors())
		lines := strings.Count(string(source), "\n") + strings.Count(string(source), "\r") +
			strings.Count(string(source), "\u0085") + strings.Count(string(source), "\u2028") + strings.Count(string(source), "\u2029") + 1
		for _, d := range findings {
			require.Equal(t, "outbox.yaml", d.Pos.File)
			require.Positive(t, d.Pos.Line, d.Message)
			require.Positive(t, d.Pos.Column, d.Message)
			require.LessOrEqual(t, d.Pos.Line, lines, d.Message)
			require.True(t, rules[d.Rule], d.Rule)
			require.Equal(t, -1, strings.IndexFunc(d.Message, unicode.IsControl), "%q", d.Message)
		}
		_, again := model.Load(source, "outbox.yaml")
		require.Equal(t, findings, again)
	})
}
