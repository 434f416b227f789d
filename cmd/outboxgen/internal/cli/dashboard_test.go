package cli_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/cmd/outboxgen/internal/cli"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// serve runs `outboxgen dashboard` until the test ends, and returns the address that it prints.
func serve(t testing.TB, env map[string]string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	printed, line := io.Pipe()
	ended := make(chan int, 1)
	var stderr bytes.Buffer
	go func() {
		ended <- cli.Run(ctx, cli.Env{Stdout: line, Stderr: &stderr, Getenv: func(name string) string { return env[name] }}, append([]string{"dashboard"}, args...))
		_ = line.Close()
	}()
	buffer := make([]byte, 1000)
	n, err := printed.Read(buffer)
	t.Cleanup(func() {
		cancel()
		require.Zero(t, pgtest.Receive(t, ended, "the end of the command"), stderr.String())
	})
	require.NoError(t, err, stderr.String())
	return strings.TrimSuffix(string(buffer[:n]), "\n")
}

// get asks as name with password, if name is not "".
func get(t testing.TB, url, name, password string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	if name != "" {
		r.SetBasicAuth(name, password)
	}
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

func TestDashboardServesThisMachine(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	url := serve(t, nil, "--addr", "127.0.0.1:0", "--database-url", pgtest.URL(t, pool), "--title", "staging", "--prefix", "/ops", "--who", "ann")
	require.Regexp(t, `^http://127\.0\.0\.1:\d+/ops/$`, url)
	status, body := get(t, url, "", "")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "staging")
	require.Contains(t, body, `<p class="who">ann</p>`)
}

// TestDashboardForgetsWithAFlagOnly: the page that forgets somebody is not there without --allow-forget.
func TestDashboardForgetsWithAFlagOnly(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	args := []string{"--addr", "127.0.0.1:0", "--database-url", pgtest.URL(t, pool)}
	url := serve(t, nil, args...)
	status, _ := get(t, url+"forget", "", "")
	require.Equal(t, http.StatusForbidden, status)
	_, body := get(t, url, "", "")
	require.NotContains(t, body, "/forget")
	status, body = get(t, serve(t, nil, append(args, "--allow-forget")...)+"forget", "", "")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "Forget a tenant or an entity")
}

func TestDashboardAsksForAPassword(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("s3cret words\n"), 0o600))
	for name, url := range map[string]string{
		"environment": serve(t, map[string]string{"OUTBOXGEN_DASHBOARD_PASSWORD": "s3cret words"}, "--addr", "127.0.0.1:0", "--database-url", pgtest.URL(t, pool)),
		"file":        serve(t, nil, "--addr", "127.0.0.1:0", "--database-url", pgtest.URL(t, pool), "--password-file", file),
	} {
		for _, wrong := range [][2]string{{"", ""}, {"ann", "wrong"}, {"ann", ""}} {
			status, body := get(t, url, wrong[0], wrong[1])
			require.Equal(t, http.StatusUnauthorized, status, name)
			require.NotContains(t, body, "Overview", name)
		}
		status, body := get(t, url, "ann", "s3cret words")
		require.Equal(t, http.StatusOK, status, name)
		require.Contains(t, body, `<p class="who">ann</p>`, name)
	}
}

func TestDashboardRefusesToListenForOthers(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, []byte("\n"), 0o600))
	for want, args := range map[string][]string{
		"can be reached from other machines: set OUTBOXGEN_DASHBOARD_PASSWORD or --password-file, or listen on 127.0.0.1": {"--addr", "0.0.0.0:0"},
		"--addr: :0 can be reached":                         {"--addr", ":0"},
		`"8088" is not host:port`:                           {"--addr", "8088"},
		"--tls-cert and --tls-key":                          {"--tls-cert", "x"},
		"--allow-forget and --read-only exclude each other": {"--allow-forget", "--read-only"},
		"empty is empty":                                    {"--password-file", empty},
		"no such file":                                      {"--password-file", empty + "/x"},
	} {
		var stdout, stderr bytes.Buffer
		code := cli.Run(t.Context(), cli.Env{Stdout: &stdout, Stderr: &stderr, Getenv: func(string) string { return "" }}, append([]string{"dashboard"}, args...))
		require.Equal(t, 2, code, "%s: %s", want, stderr.String())
		if strings.HasPrefix(want, "no such") {
			want = "--password-file: open " // "not a directory" or "no such file", by the operating system
		}
		require.Contains(t, stderr.String(), want)
		require.Empty(t, stdout.String())
	}
}

// TestDashboardNeedsTables: the command refuses a database without tables, as every command does, and serves no page of errors.
func TestDashboardNeedsTables(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // it would serve until then
	defer cancel()
	var stdout, stderr bytes.Buffer
	env := cli.Env{Stdout: &stdout, Stderr: &stderr, Getenv: func(string) string { return "" }}
	require.Equal(t, 3, cli.Run(ctx, env, []string{"dashboard", "--addr", "127.0.0.1:0", "--database-url", pgtest.Empty(t)}))
	require.Regexp(t, "^outboxgen: database [a-z0-9_]+, schema outbox: .*database is not migrated \\(run `outboxgen migrate up --schema outbox`\\)", stderr.String())
	require.Empty(t, stdout.String())
}
