//go:build unix

package pgserver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A folder is swept if its process and its guard were killed, but never while a process holds its lock. This test is not
// parallel: a process that another test starts meanwhile would inherit the lock until it runs its program.
func TestSweep(t *testing.T) {
	parent := t.TempDir()
	folder := func(name string, age time.Duration, files ...string) string {
		dir := filepath.Join(parent, name)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "data"), 0o755))
		for _, f := range files {
			require.NoError(t, os.WriteFile(filepath.Join(dir, f), nil, 0o600))
		}
		at := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(dir, at, at))
		return dir
	}
	abandoned := folder(dirPrefix+"1", time.Hour, lockName)
	young := folder(dirPrefix+"2", 0, lockName)
	unlocked := folder(dirPrefix+"3", time.Hour)
	foreign := folder("somebody", time.Hour, lockName)
	held := folder(dirPrefix+"4", time.Hour, lockName)
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
