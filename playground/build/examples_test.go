package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator"
)

// Each example generates code, and the first says little.
func TestExamples(t *testing.T) {
	t.Parallel()
	list, err := examplesOf("../..")
	require.NoError(t, err)
	require.Len(t, list, len(recipes)+len(programs))
	for _, e := range list {
		_, err := generator.Generate([]byte(e.YAML), generator.Options{})
		require.NoError(t, err, e.Title)
		require.Less(t, len(strings.Split(list[0].YAML, "\n")), 40)
	}
	_, err = blockOf("# Cookbook\n\ntext\n\n## Other\n\n```yaml\na: b\n```\n", "Cookbook")
	require.ErrorContains(t, err, "no YAML")
	_, err = blockOf("# Cookbook\n", "Lunch")
	require.ErrorContains(t, err, "no section")
}

// The policy allows what the page has in itself, and no request.
func TestPolicy(t *testing.T) {
	t.Parallel()
	p := policy("a {}", "alert()")
	require.Contains(t, p, "default-src 'none'; script-src 'sha256-")
	require.NotContains(t, p, "unsafe-inline")
	require.NotContains(t, p, "connect-src")
	require.NotContains(t, p, "'unsafe-eval'")
}
