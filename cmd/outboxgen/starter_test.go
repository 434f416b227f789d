package main

import (
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// newModule makes a module as a user has one, which uses this checkout, and returns its folder and a function that runs a
// command in it.
func newModule(t *testing.T) (dir string, run func(name string, args ...string) string) {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	dir = t.TempDir()
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o644))
	requirements, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	_, versions, ok := strings.Cut(string(requirements), "\nrequire (")
	require.True(t, ok)
	const module = "github.com/outboxgen/outboxgen"
	mod := "module example.com/app\n\ngo 1.25.0\n\ntool " + module + "/cmd/outboxgen\n\nrequire " + module + " v0.0.0\n\nrequire (" + versions +
		"\nreplace " + module + " => " + root + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte(mod), 0o644))
	return dir, func(name string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		// Everything that it needs was downloaded to build this test.
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off", "GOSUMDB=off")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s %v: %s", name, args, out)
		return string(out)
	}
}

// TestReadmeBuilds: the YAML of the README generates, and its Go compiles against the result.
func TestReadmeBuilds(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out by -short")
	}
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	require.NoError(t, err)
	block := func(language string) []byte {
		_, rest, ok := strings.Cut(string(readme), "\n```"+language+"\n")
		require.True(t, ok, "README.md has no %s", language)
		text, _, ok := strings.Cut(rest, "\n```\n")
		require.True(t, ok)
		return []byte(text + "\n")
	}
	dir, run := newModule(t)
	run("go", "tool", "outboxgen", "init", "events")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "events", "outbox.yaml"), block("yaml"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "app.go"), block("go"), 0o644))
	run("go", "generate", "./events")
	run("go", "vet", "./...")
}

// TestFindingsUnderGoGenerateAreClickable: go generate runs in the folder of the package. Wherever the user stands, the path of a
// finding leads to the file.
func TestFindingsUnderGoGenerateAreClickable(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out by -short")
	}
	dir, run := newModule(t)
	run("go", "tool", "outboxgen", "init", "events")
	config := filepath.Join(dir, "events", "outbox.yaml")
	require.NoError(t, os.WriteFile(config, []byte("version: \"1\"\npakage: events\n"), 0o644))
	for folder, arg := range map[string]string{".": "./...", "events": "."} {
		cmd := exec.CommandContext(t.Context(), "go", "generate", arg)
		cmd.Dir = filepath.Join(dir, folder)
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off", "GOSUMDB=off")
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		path, _, found := strings.Cut(string(out), ":2:1: unknown key \"pakage\"")
		require.True(t, found, string(out))
		path = path[strings.LastIndexByte(path, '\n')+1:]
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, folder, path)
		}
		there, err := os.Stat(path)
		require.NoError(t, err, "from %s", folder)
		want, err := os.Stat(config)
		require.NoError(t, err)
		require.True(t, os.SameFile(want, there), "from %s", folder)
	}
}

// TestStarterBuilds follows the README in a new module: init, go get -tool, go generate. The generated Go must build and
// pass vet.
func TestStarterBuilds(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out by -short")
	}
	dir, run := newModule(t)
	require.NotContains(t, run("go", "tool", "outboxgen", "init", "events"), "go get -tool")
	require.Contains(t, run("go", "generate", "./events"), "create events/mini_chat.outbox.go", "the list of changes is relative to the root of the module")
	run("go", "vet", "./...")
	require.Empty(t, run("go", "tool", "outboxgen", "generate", "--config", "events/outbox.yaml", "--check"))

	// go generate ends with an error if a file that it has listed is gone when it comes to that file.
	config := filepath.Join(dir, "events", "outbox.yaml")
	yaml, err := os.ReadFile(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(config, []byte(strings.ReplaceAll(string(yaml), "turn_finalized", "turn_ended")), 0o644))
	require.Contains(t, run("go", "generate", "./events"), "remove events/mini_chat.turn_finalized.outbox.go")
}

// TestStarterWorkerRuns: init --worker in an empty module writes a program that compiles after go generate as it is. It
// drains, runs, and stops on SIGTERM, however many come.
func TestStarterWorkerRuns(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out by -short")
	}
	pool := pgtest.Database(t)
	dir, run := newModule(t)
	require.Contains(t, run("go", "tool", "outboxgen", "init", "--worker", "events"), "create cmd/worker/main.go")
	run("go", "generate", "./events")
	run("go", "vet", "./...")
	binary := filepath.Join(dir, "worker")
	run("go", "build", "-o", binary, "./cmd/worker")

	url := pgtest.URL(t, pool)
	call := func(args ...string) (code int, out, log string) {
		cmd := exec.CommandContext(t.Context(), binary, args...)
		cmd.Env = append(os.Environ(), "DATABASE_URL="+url)
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			require.ErrorAs(t, err, new(*exec.ExitError))
		}
		return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
	}
	code, out, log := call("drain", "-events", "5")
	require.Equal(t, 0, code, log)
	require.Regexp(t, `^\{"delivered":0,.*"ended":"drained","more":false,"took":"[0-9.a-zµ]+","parts":\[\{"name":"mini_chat",.*\}\]\}\n$`, out)
	require.Empty(t, log, "no warning about the pool")

	// An event whose handler is not written waits, and the drain says so.
	pgtest.Execute(t, pool, `SELECT outbox.enqueue(namespace => 'mini_chat', topic => 'turn_finalized', version => 1, tenant_id => '01890a5d-ac96-774b-bcce-b302099a8057',
		payload => '{"tenant_id": "01890a5d-ac96-774b-bcce-b302099a8057", "turn_id": "01890a5d-ac96-774b-bcce-b302099a8057", "chat_id": "01890a5d-ac96-774b-bcce-b302099a8057",
			"outcome": "completed", "model": "m", "input_tokens": 1, "output_tokens": 1, "finalized_at": "2026-01-01T00:00:00Z"}')`)
	code, out, log = call("drain")
	require.Equal(t, 0, code, log)
	require.Contains(t, out, `"handed_back":1,"resting":["mini_chat/turn_finalized"]`)
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue WHERE attempts = 0"))

	for _, args := range [][]string{{}, {"fly"}, {"run", "now"}, {"drain", "-events", "x"}, {"run", "-events", "5"}} {
		code, out, log = call(args...)
		require.Equal(t, 2, code, "%v: %s", args, log)
		require.Empty(t, out)
		require.Contains(t, log, "usage: worker run, or worker drain")
	}
	pgtest.Execute(t, pool, "ALTER SCHEMA outbox RENAME TO elsewhere")
	code, out, log = call("drain")
	require.Equal(t, 1, code)
	require.Contains(t, out, `"ended":"stopped"`)
	require.Contains(t, log, "worker: mini_chat: drain: ")
	pgtest.Execute(t, pool, "ALTER SCHEMA elsewhere RENAME TO outbox")
	good := url
	url = "localhost/app"
	code, _, log = call("run")
	require.Equal(t, 1, code)
	require.Contains(t, log, "worker: read DATABASE_URL: cannot parse ")
	url = good

	cmd := exec.CommandContext(t.Context(), binary, "run")
	cmd.Env = append(os.Environ(), "DATABASE_URL="+pgtest.URL(t, pool))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.queue WHERE claim_no > 1")
	for range 5 { // the later ones find it while it stops, or exits
		_ = cmd.Process.Signal(syscall.SIGTERM)
		time.Sleep(2 * time.Millisecond)
	}
	require.NoError(t, cmd.Wait(), stderr.String())
}

// everyKind declares every kind of dispatcher and listener, with names that the program uses itself.
const everyKind = `version: "1"
package: queue
namespaces:
  jobs:
    topics:
      handled: {payload: {n: int64}}
      published: {partition_key: "{n}", publish: {kafka: {topic: jobs}}, payload: {n: int64}}
  relay:
    topics:
      sent: {partition_key: "{n}", publish: {nats: {subject: sent}}, payload: {n: int64}}
  bare:
    stubs: none
    topics:
      done: {payload: {n: int64}}
  logs:
    topics:
      said: {delivery: log, partition_key: "{n}", payload: {n: int64}}
      told: {delivery: log, partition_key: "{n}", publish: {kafka: {topic: told}}, payload: {n: int64}}
listeners:
  jobs: {topics: [logs/said], go: JobLog}
  books: {topics: [logs/said], mode: transactional, shards: 2}
  outbound: {topics: [logs/told], publish: true}
  quiet: {topics: [logs/said], stubs: none}
`

// TestWorkerOfEveryKindBuilds: init --worker next to an outbox.yaml writes a program with all its dispatchers and
// listeners that compiles as it is, and nothing else. It never overwrites a file.
func TestWorkerOfEveryKindBuilds(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out by -short")
	}
	dir, run := newModule(t)
	events := filepath.Join(dir, "internal", "events")
	require.NoError(t, os.MkdirAll(events, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(events, "outbox.yaml"), []byte(everyKind), 0o644))
	out := run("go", "tool", "outboxgen", "init", "--worker", "internal/events")
	require.Contains(t, out, "create cmd/worker/main.go")
	require.Equal(t, 1, strings.Count(out, "create "))
	require.Contains(t, out, "next: write newPublishers in cmd/worker/main.go\n")
	run("go", "tool", "outboxgen", "generate", "--config", "internal/events/outbox.yaml")
	run("go", "vet", "./...")
	code, err := os.ReadFile(filepath.Join(dir, "cmd", "worker", "main.go"))
	require.NoError(t, err)
	for _, want := range []string{
		`	topics "example.com/app/internal/events"`,
		`topics.NewJobsDispatcher(pool, &topics.JobsHandler{}, queue.Config{Publishers: publishers})`,
		`topics.NewRelayDispatcher(pool, queue.Config{Publishers: publishers})`,
		`topics.NewBareDispatcher(pool, topics.UnimplementedBareHandlers{}, queue.Config{})`,
		`topics.NewJobLogListener(pool, &topics.JobLogHandler{}, listener.Config{})`,
		`topics.NewBooksListener(pool, &topics.BooksHandler{}, listener.Config{})`,
		`topics.NewOutboundListener(pool, listener.Config{Publishers: publishers})`,
		`defer closePublishers()`,
		`worker.Part{Name: "jobs", Runner: jobsDispatcher},`,
		`worker.Part{Name: "listener jobs", Runner: jobLogListener},`,
		`write newPublishers for kafka and nats`,
	} {
		require.Contains(t, string(code), want)
	}
	formatted, err := format.Source(code)
	require.NoError(t, err)
	require.Equal(t, string(formatted), string(code))
}
