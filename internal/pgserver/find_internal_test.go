package pgserver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFindHonoursTheVariable(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(BinVariable, dir)
	_, err := Find()
	require.EqualError(t, err, "find PostgreSQL: OUTBOXGEN_PG_BIN="+dir+" does not contain initdb and postgres")
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

func TestTail(t *testing.T) {
	t.Parallel()
	require.Equal(t, "b; c", tail("a\n\n b \nc\n", 2))
	require.Empty(t, tail("", 3))
}
