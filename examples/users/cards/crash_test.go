package cards_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxgen/outboxgen/examples/users/cards"
)

const (
	// childVariable has the configuration of a child process.
	childVariable = "USERS_TEST_CARDS_CHILD"
	// childName is the application_name of its sessions.
	childName = "cards_test child"
)

type orders struct {
	URL     string
	Brokers []string
}

// TestChild is not a test: it is the main function of the child processes, which run a projection.
func TestChild(t *testing.T) {
	text := os.Getenv(childVariable)
	if text == "" {
		return
	}
	var o orders
	require.NoError(t, json.Unmarshal([]byte(text), &o))
	cfg, err := pgxpool.ParseConfig(o.URL)
	require.NoError(t, err)
	cfg.ConnConfig.RuntimeParams["application_name"] = childName
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	p, err := cards.New(pool, cards.Config{Brokers: o.Brokers, Options: []kgo.Opt{instance}})
	require.NoError(t, err)
	require.NoError(t, p.Run(t.Context()))
}

// instance lets a process replace a killed one immediately, instead of after the session timeout of that one.
var instance = kgo.InstanceID("cards-0")

// child is a projection in another process.
type child struct{ cmd *exec.Cmd }

func (f *fixture) child() *child {
	f.t.Helper()
	text, err := json.Marshal(orders{URL: f.pool.Config().ConnString(), Brokers: f.brokers})
	require.NoError(f.t, err)
	self, err := os.Executable()
	require.NoError(f.t, err)
	c := &child{cmd: exec.Command(self, "-test.run=^TestChild$", "-test.count=1")}
	c.cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	c.cmd.Stderr = os.Stderr
	require.NoError(f.t, c.cmd.Start())
	f.t.Cleanup(c.kill)
	return c
}

// kill ends the process with SIGKILL and waits for its end.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // fails only if it has ended
	_ = c.cmd.Wait()
}

// TestKilled kills the projection with SIGKILL at each point where it could matter: anywhere in a batch, in a transaction
// between the record of the event and its effect, and between the transactions and the commit of the offsets. In the end
// nothing is missing, and each event has had its effect once.
func TestKilled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	events, want := f.lives(100)
	f.publish(events...)
	handled := func() int { return f.count("SELECT count(*) FROM cards_inbox.processed_events") }
	require.Greater(t, len(events), 200)

	for _, n := range []int{1, 40, 80} { // anywhere in a batch
		c := f.child()
		require.Eventually(t, func() bool { return handled() >= n }, patience, look)
		c.kill()
	}

	// PostgreSQL may still be running the last statement of the killed process.
	require.Eventually(t, func() bool {
		return f.count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1", childName) == 0
	}, patience, look)
	before := handled()
	blocker, err := f.pool.Begin(t.Context()) // in a transaction
	require.NoError(t, err)
	_, err = blocker.Exec(t.Context(), "LOCK TABLE cards.cards IN EXCLUSIVE MODE")
	require.NoError(t, err)
	c := f.child()
	f.awaitLock()
	c.kill()
	require.NoError(t, blocker.Rollback(t.Context()))
	require.Equal(t, before, handled(), "the record is undone with the effect")

	told := make(chan struct{}) // before the commit of the offsets
	f.cluster.ControlKey(kmsg.OffsetCommit.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		close(told)
		return nil, nil, true // not executed, and without an answer
	})
	c = f.child()
	<-told
	c.kill()

	p := f.project(func(cfg *cards.Config) { cfg.Options = []kgo.Opt{instance} })
	require.Positive(t, p.Counts().Duplicate, "events that were committed without their offset arrive again")
	f.requireCards(want...)
	f.requireEachOnce(len(events))
}
