package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

var update = flag.Bool("update", false, "write what the commands print into the scripts")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"outboxgen": main})
}

// TestScripts runs testdata/script: every command, with its stdout, stderr and exit code. A script may
// use, besides the commands of testscript:
//
//	code N args...     outboxgen args..., which must exit with N
//	database           sets DATABASE_URL to a new, empty database
//	server             sets DATABASE_URL to the empty database of a new server, which keeps its data in a crash
//	sql statement      runs a statement there, or the file if its name ends in .sql
//	unchanged file...  file has the modification time that it had at the last call
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       *update,
		Setup: func(env *testscript.Env) error {
			for _, name := range []string{"DATABASE_URL", "PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSERVICE", "PGPASSFILE"} {
				env.Setenv(name, "")
			}
			// Without it a program that is built with -race takes a second to exit.
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code": exitCode,
			"database": func(ts *testscript.TestScript, _ bool, _ []string) {
				dsn := pgtest.Empty(t)
				cfg, err := pgx.ParseConfig(dsn)
				ts.Check(err)
				ts.Setenv("DATABASE_URL", dsn)
				ts.Setenv("DB_HOST", cfg.Host)
				ts.Setenv("DB_PORT", strconv.Itoa(int(cfg.Port)))
				ts.Setenv("DB_USER", cfg.User)
				ts.Setenv("DB_PASSWORD", cfg.Password)
				ts.Setenv("DB_NAME", cfg.Database)
			},
			"server": func(ts *testscript.TestScript, _ bool, _ []string) {
				ts.Setenv("DATABASE_URL", pgtest.Server(t, pgserver.Options{Durable: true}).URL())
			},
			"sql":       runSQL,
			"unchanged": unchanged,
		},
	})
}

// exitCode runs outboxgen. The next lines of the script can check its stdout and stderr. A doctor that had not enough time for a
// check, because the machine is busy, is called again.
func exitCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: code N args...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	for tries := 0; ; tries++ {
		got = 0
		if err := ts.Exec("outboxgen", args[1:]...); err != nil {
			var exit *exec.ExitError
			if !errors.As(err, &exit) {
				ts.Fatalf("run outboxgen: %v", err)
			}
			got = exit.ExitCode()
		}
		if tries == 10 || !strings.Contains(ts.ReadFile("stdout"), "the check was not done within 2s") {
			break
		}
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

func runSQL(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: sql statement")
	}
	text := args[0]
	if strings.HasSuffix(text, ".sql") {
		text = ts.ReadFile(text)
	}
	conn, err := pgx.Connect(context.Background(), ts.Getenv("DATABASE_URL"))
	ts.Check(err)
	_, err = conn.Exec(context.Background(), text)
	ts.Check(errors.Join(err, conn.Close(context.Background())))
}

// unchanged keeps the modification times in the environment of the script.
func unchanged(ts *testscript.TestScript, _ bool, args []string) {
	for _, name := range args {
		info, err := os.Stat(ts.MkAbs(name))
		ts.Check(err)
		key, now := "MTIME_"+name, info.ModTime().String()
		if before := ts.Getenv(key); before != "" && before != now {
			ts.Fatalf("%s was written at %s, before at %s", name, now, before)
		}
		ts.Setenv(key, now)
	}
}

// If a folder cannot be written, a command prints one line, exits with 3 and writes nothing. Root may write
// everywhere, so for root the commands run as the user nobody.
func TestReadOnlyFolder(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		require.NotZero(t, syscall.Getpagesize()) // the modes of folders have no effect there
		return
	}
	dir, err := os.MkdirTemp("", "outboxgen-readonly-")
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, os.Chmod(filepath.Join(dir, "events"), 0o755))
		require.NoError(t, os.RemoveAll(dir))
	})
	require.NoError(t, os.Chmod(dir, 0o755))
	program := filepath.Join(dir, "outboxgen")
	copyProgram(t, program)
	events := filepath.Join(dir, "events")
	require.NoError(t, os.Mkdir(events, 0o755))
	outbox := func(args ...string) (string, int) {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Dir = dir
		asNobody(cmd)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil {
			require.ErrorAs(t, err, &exit)
			return string(out), exit.ExitCode()
		}
		return string(out), 0
	}

	require.NoError(t, os.Chmod(events, 0o555))
	for command, want := range map[string]string{
		"init events":                   "outboxgen: write events/outbox.yaml: permission denied\n",
		"init events/new":               "outboxgen: make folder events/new: permission denied\n",
		"migrate get --dir events":      "outboxgen: write events/0001_outbox_events.up.sql: permission denied\n",
		"migrate get --dir events/down": "outboxgen: make folder events/down: permission denied\n",
	} {
		out, code := outbox(strings.Fields(command)...)
		require.Equal(t, want, out, command)
		require.Equal(t, 3, code, command)
	}

	require.NoError(t, os.WriteFile(filepath.Join(dir, "outbox.yaml"), []byte(smallYAML), 0o644))
	out, code := outbox("generate", "--out", "events")
	require.Regexp(t, `^outboxgen: write events/[a-z_.-]+: permission denied\n$`, out)
	require.Equal(t, 3, code)
	left, err := os.ReadDir(events)
	require.NoError(t, err)
	require.Empty(t, left)

	require.NoError(t, os.Chmod(filepath.Join(dir, "outbox.yaml"), 0))
	for _, command := range []string{"generate", "diff", "validate", "list"} {
		out, code = outbox(command)
		require.Equal(t, "outboxgen: read outbox.yaml: permission denied\n", out)
		require.Equal(t, 2, code)
	}
}

const smallYAML = `version: "1"
package: events
namespaces:
  app:
    topics:
      happened:
        payload: {id: uuid}
`

// copyProgram copies this test binary, which runs outboxgen if it is called by that name. Another program does the copying.
// Otherwise each process that another test starts meanwhile would inherit the copy, open for writing, and the copy could
// not be run ("text file busy").
func copyProgram(t *testing.T, to string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, exec.Command("cp", self, to).Run())
}
