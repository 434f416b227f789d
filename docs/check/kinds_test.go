package check

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// notRun has the number of blocks per page that cannot be run. Each says why in its "not run" comment. Add one only if
// nothing can check it.
var notRun = map[string]int{
	"docs/run/draining.md":     6, // units of systemd, manifests of Kubernetes, pg_cron
	"docs/change/evolution.md": 1, // a step of a workflow
	"docs/start/tutorial.md":   2, // Docker, and a program that runs until it is stopped
}

// TestBlocksThatAreNotRun: no block escapes the tests unless this list has it.
func TestBlocksThatAreNotRun(t *testing.T) {
	t.Parallel()
	have := make(map[string]int)
	for _, page := range pages(t) {
		for _, b := range read(t, page) {
			if why, ok := b.comments["not run"]; ok {
				require.NotEmpty(t, why, b)
				have[page]++
				continue
			}
			known := []string{"go", "yaml", "sql", "sh", "json", "text", "diff", "mermaid", "dockerfile", "events"}
			require.Contains(t, known, b.language, "%s: nothing checks this language", b)
		}
	}
	require.Equal(t, notRun, have, "blocks with a \"not run\" comment, by page: %v", slices.Sorted(maps.Keys(have)))
}
