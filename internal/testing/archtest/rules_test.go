package archtest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/diag"
)

// TestRulesAreDocumented checks that docs/model/yaml.md lists every rule with its summary.
func TestRulesAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/model/yaml.md")
	require.NoError(t, err)
	for _, rule := range diag.Rules() {
		require.Contains(t, string(text), "| `"+string(rule.ID)+"` | "+rule.Summary+" |")
	}
}
