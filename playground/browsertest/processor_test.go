package browsertest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// processorTime returns how long processors have worked for the processes of the browser. Unlike the time of day it does
// not depend on what else the machine does. ok is false on systems without /proc.
func processorTime(t testing.TB) (spent time.Duration, ok bool) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	parents, ticks := make(map[int]int), make(map[int]int)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		require.NoError(t, err)
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:])) // the first is the state
		number := func(i int) int {
			n, err := strconv.Atoi(fields[i])
			require.NoError(t, err)
			return n
		}
		parents[pid], ticks[pid] = number(1), number(11)+number(12)
	}
	root := chromium.Process()
	sum := 0
	for pid, used := range ticks {
		for at := pid; at > 0; at = parents[at] {
			if at == root {
				sum += used
				break
			}
		}
	}
	return time.Duration(sum) * 10 * time.Millisecond, len(files) > 0 // Linux counts in hundredths of a second
}
