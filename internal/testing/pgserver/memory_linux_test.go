package pgserver_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
)

// TestFilesInMemory: the files of a server for tests are in memory if there is enough of it. Those of a durable server, or of
// one whose folder somebody has chosen, never are.
func TestFilesInMemory(t *testing.T) {
	parents := map[string]pgserver.Options{}
	for _, o := range []pgserver.Options{{}, {Durable: true}} {
		s, err := pgserver.Start(o)
		require.NoError(t, err)
		parents[s.Dir()] = o
		require.NoError(t, s.Stop())
		require.NoDirExists(t, s.Dir())
	}
	require.Len(t, parents, 2)
	for dir, o := range parents {
		inMemory := strings.HasPrefix(dir, "/dev/shm/")
		require.False(t, o.Durable && inMemory)
		require.True(t, o.Durable || inMemory || pgserver.MemoryParent() == "", dir)
	}
	t.Setenv("TMPDIR", open(t))
	s, err := pgserver.Start(pgserver.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Stop()) }()
	require.True(t, strings.HasPrefix(s.Dir(), os.Getenv("TMPDIR")))
}
