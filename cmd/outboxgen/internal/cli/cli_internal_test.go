package cli

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/diag"
)

// start runs a command line without an environment.
func start(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, complaints bytes.Buffer
	env := Env{Stdout: &out, Stderr: &complaints, Getenv: func(string) string { return "" }}
	code = Run(t.Context(), env, args)
	return out.String(), complaints.String(), code
}

func TestRunReturnsTheExitCode(t *testing.T) {
	t.Parallel()
	out, complaints, code := start(t, "version")
	require.Equal(t, exitFine, code)
	require.True(t, strings.HasPrefix(out, "outboxgen "))
	require.Empty(t, complaints)

	out, complaints, code = start(t, "bogus")
	require.Equal(t, exitUsage, code)
	require.Empty(t, out)
	require.Equal(t, "outboxgen: unknown command \"bogus\" for \"outboxgen\": outboxgen --help lists the commands\n", complaints)
}

// A full disk or a closed pipe behind stdout is a failure.
func TestStdoutThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"version"}, {"version", "--json"}, {"schema"}, {"migrate", "get"}} {
		var complaints bytes.Buffer
		code := Run(t.Context(), Env{Stdout: broken{}, Stderr: &complaints, Getenv: func(string) string { return "" }}, args)
		require.Equal(t, exitFailure, code, args)
		require.Equal(t, "outboxgen: disk full\n", complaints.String())
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("disk full") }

// However a connection string is written, no message contains a piece of its password.
func TestParseProblemHidesThePassword(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"postgres://u:xyqvkj%zz@h/d",
		"postgres://u:xyq%zzvkj@h/d",
		"postgres://u:xyqvkj@h:port/d",
		"postgres://u:xyqvkj`: @h:99999/d",
		"postgres://u:xyqvkj@[::1/d",
		"postgres://u:xyqvkj@h/d?sslmode=bogus",
		"postgres://u:xyqvkj@h/d?connect_timeout=soon",
		"postgres://u:xyqvkj@h/d?default_query_exec_mode=bogus",
		"postgres://u:xyqvkj@h/d?target_session_attrs=bogus",
		"host=h password='xyqvkj",
		"host=h password=xyqvkj port=x",
		"xyqvkj",
		"user=u password='xyq vkj' port=0",
	} {
		_, err := pgx.ParseConfig(dsn)
		require.Error(t, err, dsn)
		text := parseProblem(err)
		require.NotContains(t, text, "xyq", dsn)
		require.NotContains(t, text, "vkj", dsn)
		require.NotContains(t, text, "\n", dsn)
		require.NotContains(t, text, "failed", dsn)
	}
}

func TestConnectProblemIsOneMaskedLine(t *testing.T) {
	t.Parallel()
	problem := func(dsn string, err error) string {
		cfg, parseErr := pgx.ParseConfig(dsn)
		require.NoError(t, parseErr)
		return connectProblem(cfg, dsn, "DATABASE_URL", err).Error()
	}
	got := problem("postgres://u:sesame@h/d", errors.Join(errors.New(`no "sesame" here`), errors.New("twice"), errors.New("twice")))
	require.Equal(t, `connect to database "d" as user "u" (DATABASE_URL): no "xxxxx" here; twice`, got)
	require.Contains(t, problem("postgres://u@h/d", &pgconn.PgError{Message: "m"}), ": m", "no password")

	for _, dsn := range []string{
		"postgres://u:ses%40me%2F1@h/d", "postgres://u@h/d?password=ses%40me%2F1", "host=h user=u dbname=d password=ses@me/1",
		"host=h user=u dbname=d password='ses@me/1'",
	} {
		for _, text := range []string{
			dsn, "cannot parse `" + dsn + "`", "cannot parse " + strconv.Quote(dsn), "postgres://u:ses@me/1@h/d", "postgres://u:ses%40me%2F1@h/d is away",
			`user "u" with password "ses@me/1"`, "password=ses@me/1 is wrong", "password = 'ses@me/1'", `"ses%40me%2F1"`,
		} {
			got := problem(dsn, errors.New(text))
			for _, piece := range []string{"ses@", "ses%", "me/1", "me%2F"} {
				require.NotContains(t, got, piece, "%s: %s", dsn, text)
			}
		}
	}
}

// With sslmode=prefer pgx tries TLS first. That a server has none matters only if nothing else was tried.
func TestConnectProblemSaysWhyItFailedWithoutTLS(t *testing.T) {
	t.Parallel()
	const refused, missing = "127.0.0.1:5432 (h): tls error: server refused TLS connection", `127.0.0.1:5432 (h): server error: FATAL: database "d" does not exist`
	cfg, err := pgx.ParseConfig("postgres://u@h/d")
	require.NoError(t, err)
	for text, want := range map[string]string{refused + "\n\t" + missing: missing, refused: refused, missing: missing} {
		require.EqualError(t, connectProblem(cfg, "", "DATABASE_URL", errors.New(text)), `connect to database "d" as user "u" (DATABASE_URL): `+want)
	}
}

// A password that is also a name, a part of one or a word must not hide what the server says.
func TestConnectProblemKeepsTheAnswer(t *testing.T) {
	t.Parallel()
	for dsn, texts := range map[string][]string{
		"postgres://postgres:postgres@h/d":               {`FATAL: role "postgres" does not exist (SQLSTATE 28000)`},
		"postgres://app:prod@h/prod2":                    {`FATAL: database "prod2" does not exist (SQLSTATE 3D000)`},
		"postgres://app:shop@h/shop":                     {`FATAL: database "shop" does not exist (SQLSTATE 3D000)`},
		"host=h user=u dbname=d password=password":       {`FATAL: password authentication failed for user "u" (SQLSTATE 28P01)`},
		"host=db user=u dbname=d password='db'":          {`hostname resolving error: lookup db: no such host`},
		"postgres://u:5432@h/d":                          {"dial tcp 127.0.0.1:5432: connect: connection refused"},
		"postgres://u:e@h/d":                             {"server refused TLS connection"},
		"postgres://u:FATAL@h/d?application_name=worker": {"FATAL: too many connections"},
	} {
		cfg, err := pgx.ParseConfig(dsn)
		require.NoError(t, err)
		for _, text := range texts {
			require.ErrorContains(t, connectProblem(cfg, dsn, "x", errors.New(text)), ": "+text)
		}
	}
}

func TestSpan(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0:                             "0s",
		1500 * time.Millisecond:       "1.5s",
		time.Minute:                   "1m",
		90 * time.Second:              "1m30s",
		time.Hour:                     "1h",
		90 * time.Minute:              "1h30m",
		168 * time.Hour:               "168h",
		time.Hour + time.Second:       "1h0m1s",
		720*time.Hour + 5*time.Minute: "720h5m",
	} {
		require.Equal(t, want, span(d))
		back, err := time.ParseDuration(want)
		require.NoError(t, err)
		require.Equal(t, d, back)
	}
}

func TestPackageArgument(t *testing.T) {
	t.Parallel()
	for dir, want := range map[string]string{".": ".", "events": "./events", "a/../b/": "./b", "../c": "../c", "..": ".."} {
		require.Equal(t, want, packageArgument(dir))
	}
}

// The folders of a drive of Windows that does not exist end at the drive.
func TestMissingFolders(t *testing.T) {
	t.Parallel()
	none := func(string) (fs.FileInfo, error) { return nil, fs.ErrNotExist }
	require.Equal(t, folders{filepath.FromSlash("/a"), filepath.FromSlash("/a/b")}, missingFolders("/a/b/", none))
	require.Empty(t, missingFolders("/", none))
	require.Equal(t, folders{"a"}, missingFolders("a", none))
	some := func(path string) (fs.FileInfo, error) {
		if len(path) > 2 {
			return nil, fs.ErrNotExist
		}
		return nil, nil
	}
	require.Equal(t, folders{filepath.FromSlash("/a/b")}, missingFolders("/a/b", some))
}

// A command in a message can be typed as it is.
func TestConfigFlag(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		defaultConfig:                        "",
		"events/outbox.yaml":                 " --config events/outbox.yaml",
		`events\outbox.yaml`:                 ` --config events\outbox.yaml`,
		`C:\Users\Jane Doe\shop\outbox.yaml`: ` --config "C:\Users\Jane Doe\shop\outbox.yaml"`,
		"/Users/jane/My Shop/outbox.yaml":    ` --config "/Users/jane/My Shop/outbox.yaml"`,
	} {
		require.Equal(t, want, configFlag(path))
	}
}

// The position of a finding of go vet may start with a drive.
func TestVetPos(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]diag.Pos{
		"/shop/events/a.go:3:4":    {File: filepath.FromSlash("events/a.go"), Line: 3, Column: 4},
		"/other/a.go:3:4":          {File: "/other/a.go", Line: 3, Column: 4},
		`C:\other\a.go:3:4`:        {File: `C:\other\a.go`, Line: 3, Column: 4},
		"D:/a b/events/a.go:12:34": {File: "D:/a b/events/a.go", Line: 12, Column: 34},
	} {
		require.Equal(t, want, vetPos(text, "/shop"), text)
	}
}
