package archtest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/diag"
)

// TestRulesAreDocumented: docs/yaml.md has every rule with its description.
func TestRulesAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/yaml.md")
	require.NoError(t, err)
	for _, rule := range diag.Rules() {
		require.Contains(t, string(text), "| `"+string(rule.ID)+"` | "+rule.Summary+" |")
	}
}
