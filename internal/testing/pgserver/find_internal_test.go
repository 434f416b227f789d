package pgserver

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
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
	require.Equal(t,
		[]string{"/home/u2/postgres-18.10.0-beta.17-linux-x64/bin", "/home/u2/postgres-18.4.0-beta.17-linux-x64/bin", "/opt/postgresql@17/bin"},
		newestFirst([]string{
			"/opt/postgresql@17/bin", "/home/u2/postgres-18.4.0-beta.17-linux-x64/bin", "/home/u2/postgres-18.10.0-beta.17-linux-x64/bin",
		}))
}

// TestFetchedServerIsTheLastCandidate: what tools/postgres.sh has fetched is found, after everything that is installed.
func TestFetchedServerIsTheLastCandidate(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("OUTBOXGEN_CACHE", cache)
	installed := candidates()
	here := strings.ReplaceAll(platform(runtime.GOOS, runtime.GOARCH), "*", "arm64")
	var want []string
	for _, name := range []string{"postgres-18.4.0-beta.17-" + here, "postgres-9.6.0-beta.17-" + here, "postgres-19.0.0-plan9-mips", "fetch.x1y2z3"} {
		bin := filepath.Join(cache, name, "bin")
		require.NoError(t, os.MkdirAll(bin, 0o755))
		want = append(want, bin)
	}
	require.Equal(t, append(installed, want[:2]...), candidates())
}

func TestCacheDir(t *testing.T) {
	t.Setenv("OUTBOXGEN_CACHE", "/cache")
	t.Setenv("XDG_CACHE_HOME", "/xdg")
	t.Setenv("HOME", "/home/u")
	require.Equal(t, "/cache", cacheDir())
	t.Setenv("OUTBOXGEN_CACHE", "")
	if os.Geteuid() == 0 {
		require.Equal(t, "/var/cache/outboxgen", cacheDir())
		return
	}
	require.Equal(t, filepath.Join("/xdg", "outboxgen"), cacheDir())
	t.Setenv("XDG_CACHE_HOME", "")
	require.Equal(t, filepath.Join("/home/u", ".cache", "outboxgen"), cacheDir())
	t.Setenv("HOME", "")
	require.Empty(t, cacheDir())
}

func TestPlatform(t *testing.T) {
	t.Parallel()
	require.Equal(t, "linux-x64", platform("linux", "amd64"))
	require.Equal(t, "linux-arm64", platform("linux", "arm64"))
	require.Equal(t, "darwin-*", platform("darwin", "arm64"))
}

// TestPlaces: tools/postgres.sh puts the major version into the star of each place.
func TestPlaces(t *testing.T) {
	t.Parallel()
	require.NotEmpty(t, places)
	for line := range strings.Lines(places) {
		require.Regexp(t, `^/[^*\s]*\*/bin\n$`, line)
	}
}

func TestTail(t *testing.T) {
	t.Parallel()
	require.Equal(t, "b; c", tail("a\n\n b \nc\n", 2))
	require.Empty(t, tail("", 3))
}
