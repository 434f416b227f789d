package archtest

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadmeFigures checks the table of the README against docs/inside/benchmarks.json. Each row shows the run whose ratio is the
// median, so that its two figures have that ratio.
func TestReadmeFigures(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/inside/benchmarks.json")
	require.NoError(t, err)
	var report struct {
		Results []struct {
			Workload string
			Figures  []struct {
				Contender string
				Runs      []float64
			}
		}
	}
	require.NoError(t, json.Unmarshal(text, &report))
	runs := make(map[string][]float64)
	for _, r := range report.Results {
		for _, f := range r.Figures {
			runs[r.Workload+": "+f.Contender] = f.Runs
		}
	}
	readme, err := os.ReadFile("../../../README.md")
	require.NoError(t, err)
	for _, row := range []struct{ what, unit, workload, instead, ours string }{
		{"one event per transaction, 4 clients, against a hand-written INSERT", "tx/s", "enqueue-4", "hand-written insert", "Enqueue"},
		{"the same, against a job by River's `InsertTx`", "tx/s", "enqueue-4", "River InsertTx", "Enqueue"},
		{"delivery, batches of 1,000, against a hand-written claim and ack", "events/s", "drain", "hand-written claim and ack", "dispatcher"},
		{"the same, against River with 2,000 workers", "events/s", "drain", "River", "dispatcher"},
	} {
		instead, ours := runs[row.workload+": "+row.instead], runs[row.workload+": "+row.ours]
		require.NotEmpty(t, instead, row.instead)
		require.Len(t, ours, len(instead))
		order := make([]int, len(ours))
		for i := range order {
			order[i] = i
		}
		ratio := func(i int) float64 { return ours[i] / instead[i] }
		slices.SortFunc(order, func(i, j int) int { return int(1e6 * (ratio(i) - ratio(j))) })
		i := order[len(order)/2]
		require.Contains(t, string(readme), fmt.Sprintf("| %s | %s %s | **%s %s** | **%.2f** |\n",
			row.what, thousands(instead[i]), row.unit, thousands(ours[i]), row.unit, ratio(i)))
	}
}

// thousands returns n as 57,449.
func thousands(n float64) string {
	s := strconv.Itoa(int(n + 0.5))
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
