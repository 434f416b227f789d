package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/contacts/contact"
	"github.com/outboxgen/outboxgen/examples/contacts/database"
	"github.com/outboxgen/outboxgen/examples/contacts/events"
	"github.com/outboxgen/outboxgen/outboxtest"
)

// asWorker makes the test program the worker itself.
const asWorker = "CONTACTS_TEST_AS_WORKER"

const key = "a-key-for-the-scheduler-of-this-test"

func TestMain(m *testing.M) {
	if os.Getenv(asWorker) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// process returns the command of a separate process.
func process(t *testing.T, pool *pgxpool.Pool, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asWorker+"=yes", "DATABASE_URL="+pool.Config().ConnString(), "DRAIN_KEY="+key)
	return cmd
}

// contacts returns a database in which n identities were linked.
func contacts(t *testing.T, n int) *pgxpool.Pool {
	t.Helper()
	pool := outboxtest.Postgres(t)
	require.NoError(t, database.Migrate(t.Context(), pool))
	tenant := uuid.New()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		ada, err := contact.Create(t.Context(), tx, tenant, "Ada")
		if err != nil {
			return err
		}
		for i := range n {
			if _, err := contact.Link(t.Context(), tx, contact.Identity{TenantID: tenant, ContactID: ada, Type: events.IdentityTypeExternalID, Value: fmt.Sprint("crm-", i)}); err != nil {
				return err
			}
		}
		return nil
	}))
	return pool
}

func entries(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM crm.directory").Scan(&n))
	return n
}

// report is what a drain prints or answers.
type report struct {
	Error     string
	Delivered int
	Ended     string
	More      bool
}

// TestCronDrain: each run of the cron job delivers some of the backlog, and the last ones find it empty.
func TestCronDrain(t *testing.T) {
	t.Parallel()
	pool := contacts(t, 25)
	for _, want := range []report{{Delivered: 10, Ended: "events", More: true}, {Delivered: 10, Ended: "events", More: true}, {Delivered: 5, Ended: "drained"}, {Ended: "drained"}} {
		out, err := process(t, pool, "drain", "-events", "10", "-time", "1h").Output()
		require.NoError(t, err)
		var got report
		require.NoError(t, json.Unmarshal(out, &got), string(out))
		require.Equal(t, want, got)
	}
	require.Equal(t, 25, entries(t, pool))
}

// TestCronJobsMayOverlap: two cron jobs that drain concurrently deliver each event once.
func TestCronJobsMayOverlap(t *testing.T) {
	t.Parallel()
	pool := contacts(t, 200)
	var jobs []*exec.Cmd
	var outputs []*strings.Builder
	for range 2 {
		cmd, out := process(t, pool, "drain", "-time", "1h"), &strings.Builder{}
		cmd.Stdout = out
		require.NoError(t, cmd.Start())
		jobs, outputs = append(jobs, cmd), append(outputs, out)
	}
	sum := 0
	for i, cmd := range jobs {
		require.NoError(t, cmd.Wait())
		var got report
		require.NoError(t, json.Unmarshal([]byte(outputs[i].String()), &got))
		sum += got.Delivered
	}
	require.Equal(t, 200, sum)
	require.Equal(t, 200, entries(t, pool))
	var attempts int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT sum(attempts) FROM outbox.delivered").Scan(&attempts))
	require.Equal(t, 200, attempts)
}

// TestDrainByHTTP: a scheduler drains by POST with the key, and the server stops on SIGTERM.
func TestDrainByHTTP(t *testing.T) {
	t.Parallel()
	pool := contacts(t, 7)
	cmd := process(t, pool, "serve", "-listen", "127.0.0.1:0")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	url := strings.TrimSpace(strings.TrimPrefix(line, "listening on ")) + "/drain"

	drain := func(url, authorization string) (int, report) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", authorization)
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		var got report
		require.NoError(t, json.Unmarshal(body, &got), string(body))
		return answer.StatusCode, got
	}
	status, got := drain(url, "Bearer guessed-key-guessed-key")
	require.Equal(t, http.StatusUnauthorized, status)
	require.Equal(t, report{Error: "unauthorized"}, got)
	require.Zero(t, entries(t, pool))
	status, got = drain(url+"?events=4", "Bearer "+key)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, report{Delivered: 4, Ended: "events", More: true}, got)
	status, got = drain(url, "Bearer "+key)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, report{Delivered: 3, Ended: "drained"}, got)
	require.Equal(t, 7, entries(t, pool))

	for range 5 { // the later ones find it while it stops, or exits
		_ = cmd.Process.Signal(syscall.SIGTERM)
		time.Sleep(time.Millisecond)
	}
	require.NoError(t, cmd.Wait())

	cmd = process(t, pool, "serve")
	cmd.Env = append(cmd.Env, "DRAIN_KEY=short")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "worker: new drain handler: field Key has 5 characters")
}
