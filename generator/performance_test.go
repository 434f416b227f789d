package generator_test

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator"
)

func glob(t testing.TB, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	return paths
}

// largeSource has n topics of 10 fields, 50 per namespace.
func largeSource(n int) []byte {
	var b strings.Builder
	b.WriteString("version: \"1\"\npackage: events\ntypes:\n  outcome: {enum: [completed, failed]}\nnamespaces:\n")
	for i := range n {
		if i%50 == 0 {
			fmt.Fprintf(&b, "  module_%d:\n    topics:\n", i/50)
		}
		fmt.Fprintf(&b, `      thing_%d_happened:
        doc: is emitted once per thing, when it happens.
        tenant: tenant_id
        dedupe_key: "{tenant_id}/{thing_id}/{request_id}"
        partition_key: "{thing_id}"
        payload:
          tenant_id: uuid
          thing_id: uuid
          request_id: uuid
          outcome: outcome
          name: {type: string, max_len: 128}
          note: string?
          tags: "[]string"
          count: {type: int64, min: 0}
          ratio: float64
          happened_at: timestamp
`, i)
	}
	return []byte(b.String())
}

// TestGenerateThousandTopics checks the limits: 1,000 topics of 10 fields in under 2 s and 300 MiB on 2 cores. It
// measures processor time, 4 s, because wall time depends on the load of the machine. The race detector gets more time,
// because it makes everything several times slower.
func TestGenerateThousandTopics(t *testing.T) { // measures
	source := largeSource(1000)
	require.Less(t, len(source), 1<<20)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start, spent := time.Now(), processorTime(t)
	files := generate(t, source, generator.Options{})
	took, spent := time.Since(start), processorTime(t)-spent
	runtime.ReadMemStats(&after)
	require.Len(t, files, 1000*2+20*3+2)
	require.Less(t, spent, 4*time.Second*raceFactor)
	require.Less(t, after.Sys, uint64(300<<20))
	t.Logf("%d files in %s, %s of processor time, %d MiB allocated, %d MiB from the system",
		len(files), took.Round(time.Millisecond), spent.Round(time.Millisecond), (after.TotalAlloc-before.TotalAlloc)>>20, after.Sys>>20)
}

func BenchmarkGenerateThousandTopics(b *testing.B) {
	source := largeSource(1000)
	b.ReportAllocs()
	for b.Loop() {
		generate(b, source, generator.Options{})
	}
}
