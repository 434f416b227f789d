package promtest

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/tool/alerts"
)

// TestRules: Prometheus reads the alerts, and each has a summary, a severity and an entry in the runbook, which names it.
func TestRules(t *testing.T) {
	t.Parallel()
	runbook, err := os.ReadFile("../../docs/operate/runbook.md")
	require.NoError(t, err)
	entries := make(map[string]string) // by anchor
	for _, entry := range strings.Split(string(runbook), "\n### ")[1:] {
		heading, text, _ := strings.Cut(entry, "\n")
		anchor := strings.ReplaceAll(regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
		entries[anchor] = text
	}
	for name, c := range configs {
		alerts := make(map[string]bool)
		for _, r := range rules(t, c) {
			alerts[r.Alert] = true
			require.NotEmpty(t, r.Annotations["summary"], r.Alert)
			require.Contains(t, []string{"critical", "warning"}, r.Labels["severity"], r.Alert)
			url, anchor, _ := strings.Cut(r.Annotations["runbook_url"], "#")
			require.Contains(t, entries[anchor], "`"+r.Alert+"`", "%s: the entry %q of docs/operate/runbook.md", r.Alert, anchor)
			if c.Runbook != "" {
				require.Equal(t, c.Runbook, url)
			}
			if c.Selector != "" {
				for _, metric := range metrics(t, r.Expr) {
					require.Contains(t, r.Expr, metric)
				}
				require.Equal(t, len(metrics(t, r.Expr)), strings.Count(r.Expr, c.Selector), r.Expr)
			}
		}
		want := []string{
			"OutboxOldestDue", "OutboxDeadLetters", "OutboxListenerLag", "OutboxTargetResting", "OutboxTopicUnhandled", "OutboxListenerUnhandled",
			"OutboxClaimsSlow", "OutboxSnapshotHeld", "OutboxGaugesMissing", "OutboxConsumerDeadLetters", "OutboxConsumerParked", "OutboxConsumerOverdue",
			"OutboxLimitWaits",
		}
		if len(c.Listeners) > 0 {
			want = append(want, "OutboxListenerMissing")
		}
		require.ElementsMatch(t, want, slices.Collect(maps.Keys(alerts)), name)
	}
}

// TestPromtool has promtool check the alerts, and run testdata/alerts.test.yml: what fires when.
func TestPromtool(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed: tools/need.sh promtool")
	}
	dir := t.TempDir()
	for name, c := range configs {
		file := filepath.Join(dir, name+".rules.yml")
		require.NoError(t, os.WriteFile(file, alerts.Rules(c), 0o600))
		out, err := exec.Command(promtool, "check", "rules", file).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	text, err := os.ReadFile("testdata/alerts.test.yml")
	require.NoError(t, err)
	test := filepath.Join(dir, "alerts.test.yml")
	require.NoError(t, os.WriteFile(test, text, 0o600))
	out, err := exec.Command(promtool, "test", "rules", test).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestDashboard: every query of the dashboard is a valid query.
func TestDashboard(t *testing.T) {
	t.Parallel()
	for _, c := range configs {
		for _, list := range queries(t, c) {
			for _, q := range list {
				require.NotEmpty(t, metrics(t, q))
			}
		}
	}
}
