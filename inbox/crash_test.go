package inbox_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// childVariable is the environment variable with the orders of a child process.
const childVariable = "OUTBOXGEN_TEST_INBOX_CHILD"

// orders tell a child process to handle events one after another, like a consumer that has lost its offset.
type orders struct {
	URL    string
	Events []uuid.UUID
	// HangAt is the event at which the process says so and hangs: after the effect and before the commit or, with
	// Committed, after the commit and before it could acknowledge to the broker.
	HangAt    int
	Committed bool
}

// TestChild is the main function of the child processes and not a test.
func TestChild(t *testing.T) {
	text := os.Getenv(childVariable)
	if text == "" {
		return
	}
	var o orders
	require.NoError(t, json.Unmarshal([]byte(text), &o))
	conn, err := pgx.Connect(t.Context(), o.URL)
	require.NoError(t, err)
	hang := func() {
		fmt.Println("hangs")
		_, _ = io.Copy(io.Discard, os.Stdin) // until the process is killed or its parent is gone
		os.Exit(1)
	}
	for n, event := range o.Events {
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		_, err = inbox.Once(t.Context(), tx, group, event, effect(tx, event))
		require.NoError(t, err)
		if n == o.HangAt && !o.Committed {
			hang()
		}
		require.NoError(t, tx.Commit(t.Context()))
		if n == o.HangAt {
			hang()
		}
	}
}

// killAt runs a child until it hangs, then kills it.
func killAt(t *testing.T, o orders) {
	t.Helper()
	text, err := json.Marshal(o)
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	child := exec.Command(self, "-test.run=^TestChild$", "-test.count=1")
	child.Env = append(os.Environ(), childVariable+"="+string(text))
	child.Stderr = os.Stderr
	stdin, err := child.StdinPipe()
	require.NoError(t, err)
	stdout, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	_ = child.Process.Kill() // SIGKILL; the only possible error is that the process has ended
	_ = child.Wait()
	_ = stdin.Close()
	require.NoError(t, err)
	require.Equal(t, "hangs\n", line)
}

// TestKilledBetweenEffectAndCommit kills a consumer 80 times with SIGKILL between effect and commit, and 20 times
// immediately after the commit. Each new process starts from the first event.
func TestKilledBetweenEffectAndCommit(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const kills = 100
	pool := database(t)
	o := orders{URL: pgtest.URL(t, pool), Events: newEvents(kills)}
	for n := range kills {
		o.HangAt, o.Committed = n, n%5 == 4
		killAt(t, o)
		want := n // the event at which the process hung has been rolled back, or will be
		if o.Committed {
			want++
		}
		// The session of the killed process may exist for a moment longer, with its transaction open.
		require.Equal(t, want, value[int](t, pool, "SELECT count(*) FROM effects"))
		if n%2 == 1 { // redelivered immediately to another process, which waits for that session's end
			_, err := deliver(t.Context(), pool, newInbox(t, inbox.Config{}), o.Events[n])
			require.NoError(t, err)
			require.Equal(t, 1, effects(t, pool, o.Events[n]))
		}
	}
	in := newInbox(t, inbox.Config{})
	for _, event := range o.Events {
		_, err := deliver(t.Context(), pool, in, event)
		require.NoError(t, err)
		require.Equal(t, 1, effects(t, pool, event))
	}
}
