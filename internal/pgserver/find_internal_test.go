package pgserver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFindHonoursTheVariable(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(BinVariable, dir)
	_, err := Find()
	require.EqualError(t, err, "find PostgreSQL: OUTBOXGEN_PG_BIN="+dir+" holds no initdb and postgres")
	_, err = Start(Options{})
	require.ErrorContains(t, err, BinVariable)
	for _, name := range []string{"initdb", "postgres"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+exeSuffix), nil, 0o755))
	}
	found, err := Find()
	require.NoError(t, err)
	require.Equal(t, dir, found)
}

func TestNoBinariesNamesTheInstallLine(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, ErrNoBinaries, "apt-get install postgresql")
}

func TestNewestFirst(t *testing.T) {
	t.Parallel()
	require.Equal(t,
		[]string{"/usr/lib/postgresql/18/bin", "/usr/lib/postgresql/15/bin", "/usr/lib/postgresql/9.6/bin", "/opt/bin"},
		newestFirst([]string{"/usr/lib/postgresql/15/bin", "/usr/lib/postgresql/9.6/bin", "/opt/bin", "/usr/lib/postgresql/18/bin"}))
}

// A folder is swept when its process and its guard were killed, never while somebody holds its lock.
func TestSweep(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	make := func(name string, age time.Duration, files ...string) string {
		dir := filepath.Join(parent, name)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "data"), 0o755))
		for _, f := range files {
			require.NoError(t, os.WriteFile(filepath.Join(dir, f), nil, 0o600))
		}
		at := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(dir, at, at))
		return dir
	}
	abandoned := make(dirPrefix+"1", time.Hour, lockName)
	young := make(dirPrefix+"2", 0, lockName)
	unlocked := make(dirPrefix+"3", time.Hour)
	foreign := make("somebody", time.Hour, lockName)
	held := make(dirPrefix+"4", time.Hour, lockName)
	lock, err := lockDir(held)
	require.NoError(t, err)
	at := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(held, at, at))

	sweep(parent)
	require.NoDirExists(t, abandoned)
	for _, dir := range []string{young, unlocked, foreign, held} {
		require.DirExists(t, dir)
	}
	require.NoError(t, lock.Close())
	sweep(parent)
	require.NoDirExists(t, held)
}

func TestTail(t *testing.T) {
	t.Parallel()
	require.Equal(t, "b; c", tail("a\n\n b \nc\n", 2))
	require.Empty(t, tail("", 3))
}
