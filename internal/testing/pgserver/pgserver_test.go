package pgserver_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
)

// childVariable makes this test binary a process that starts a server and waits to be killed.
const childVariable = "OUTBOXGEN_TEST_PGSERVER_CHILD"

// patience is how long a test waits for something that must happen. It expires only if something is broken.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	if dir := os.Getenv(childVariable); dir != "" {
		child(dir)
		return
	}
	os.Exit(m.Run())
}

// child starts a server below dir, prints its folder and pid, and waits for the end of its input.
func child(dir string) {
	s, err := pgserver.Start(pgserver.Options{Dir: dir})
	if err != nil {
		_, _ = os.Stdout.WriteString("error: " + err.Error() + "\n")
		os.Exit(1)
	}
	_, _ = os.Stdout.WriteString(s.Dir() + " " + strconv.Itoa(s.Pid()) + "\n")
	_, _ = os.Stdin.Read(make([]byte, 1))
	os.Exit(1) // without Stop
}

// open returns a folder that the user of the server can reach.
func open(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgserver-test-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o777|os.ModeSticky))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func query(t *testing.T, dsn, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	var value string
	require.NoError(t, conn.QueryRow(t.Context(), sql).Scan(&value))
	return value
}

func TestStart(t *testing.T) {
	t.Parallel()
	dir := open(t)
	s, err := pgserver.Start(pgserver.Options{Dir: dir, Settings: map[string]string{"application_name": "it's us"}})
	require.NoError(t, err)

	require.Equal(t, "off", query(t, s.URL(), "SHOW fsync"))
	require.Equal(t, "200", query(t, s.URL(), "SHOW max_connections"))
	require.Equal(t, "it's us", query(t, s.URL(), "SHOW application_name"))
	require.Equal(t, "template1", query(t, s.URLOf("template1"), "SELECT current_database()::text"))

	u, err := url.Parse(s.URL())
	require.NoError(t, err)
	u.User = url.UserPassword("postgres", "guess")
	_, err = pgx.Connect(t.Context(), u.String())
	require.ErrorContains(t, err, "password authentication failed")

	require.NoError(t, s.Stop())
	require.NoError(t, s.Stop())
	require.Zero(t, s.Pid())
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
	require.ErrorContains(t, s.Restart(), "server was stopped")
}

func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	s, err := pgserver.Start(pgserver.Options{Dir: open(t), Durable: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Stop()) }()
	require.Equal(t, "on", query(t, s.URL(), "SHOW fsync"))

	conn, err := pgx.Connect(t.Context(), s.URL())
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "CREATE TABLE kept AS SELECT 'still here'::text AS word")
	require.NoError(t, err)

	port, first := s.Port(), s.Pid()
	require.NoError(t, s.Kill())
	require.Zero(t, s.Pid())
	require.Eventually(t, func() bool { return conn.Ping(t.Context()) != nil }, patience, time.Millisecond)
	require.NoError(t, s.Restart())
	require.Equal(t, "still here", query(t, s.URL(), "SELECT word FROM kept"))
	require.NoError(t, s.Restart(), "the server is running")
	require.Equal(t, "still here", query(t, s.URL(), "SELECT word FROM kept"))
	require.Equal(t, port, s.Port())
	require.NotEqual(t, first, s.Pid())
	require.Contains(t, s.Log(), "automatic recovery in progress")
}

// A server keeps running after its last reference is gone, because it may serve until the process ends.
func TestServerOutlivesItsVariable(t *testing.T) {
	t.Parallel()
	start := func() string {
		s, err := pgserver.Start(pgserver.Options{})
		require.NoError(t, err)
		return s.URL()
	}
	dsn := start()
	for range 3 {
		runtime.GC()
		require.Equal(t, "1", query(t, dsn, "SELECT '1'"))
	}
}

// A process that ends by SIGKILL or without Stop leaves neither server nor folder behind.
func TestServerEndsWithItsProcess(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"killed", "exits"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			dir := open(t)
			self, err := os.Executable()
			require.NoError(t, err)
			cmd := exec.CommandContext(t.Context(), self)
			cmd.Env = append(os.Environ(), childVariable+"="+dir)
			input, err := cmd.StdinPipe()
			require.NoError(t, err)
			output, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			line := make([]byte, 4096)
			n, err := output.Read(line)
			require.NoError(t, err)
			folder, pid, ok := strings.Cut(strings.TrimSpace(string(line[:n])), " ")
			require.True(t, ok, string(line[:n]))
			require.DirExists(t, folder)

			if how == "killed" {
				require.NoError(t, cmd.Process.Kill())
			} else {
				require.NoError(t, input.Close())
			}
			require.Error(t, cmd.Wait())
			require.Eventually(t, func() bool {
				left, err := os.ReadDir(dir)
				return err == nil && len(left) == 0
			}, patience, 20*time.Millisecond, "folder stays")
			require.Eventually(t, func() bool {
				_, err := os.Stat(filepath.Join("/proc", pid))
				return errors.Is(err, os.ErrNotExist)
			}, patience, 20*time.Millisecond, "server stays")
		})
	}
}
