package check

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator"
)

// TestYAMLBlocks validates the YAML of all pages: each block is an outbox.yaml, or part of the one in its yaml comment.
func TestYAMLBlocks(t *testing.T) {
	t.Parallel()
	blocks := all(t, "yaml")
	require.Greater(t, len(blocks), 10)
	for _, b := range blocks {
		source, ok := outboxYAML(b)
		require.True(t, ok)
		_, findings := generator.Load([]byte(source), generator.Options{})
		require.NoError(t, findings.Err(), "%s:\n%s", b, source)
	}
}

// TestJSONBlocks parses the JSON of all pages.
func TestJSONBlocks(t *testing.T) {
	t.Parallel()
	blocks := all(t, "json")
	require.NotEmpty(t, blocks)
	for _, b := range blocks {
		require.True(t, json.Valid([]byte(b.text)), b)
	}
}
