package events_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/examples/threads/database"
	"github.com/outboxgen/outboxgen/examples/threads/events"
	"github.com/outboxgen/outboxgen/examples/threads/thread"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
)

func (f *fixture) admin() *admin.Admin {
	f.t.Helper()
	a, err := admin.New(f.pool, database.Schema)
	require.NoError(f.t, err)
	return a
}

// status returns the status of a listener with one shard.
func (f *fixture) status(name string) admin.ListenerStatus {
	f.t.Helper()
	list, err := f.admin().Listeners(f.t.Context())
	require.NoError(f.t, err)
	for _, s := range list {
		if s.Listener == name {
			return s
		}
	}
	require.FailNow(f.t, "listener is not attached", name)
	return admin.ListenerStatus{}
}

// TestWhereALateListenerStarts attaches both listeners when the thread already has messages, one of them not committed.
func TestWhereALateListenerStarts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	one, two := f.thread(), f.thread()
	f.post(one, "old", "older")
	open, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = open.Rollback(context.Background()) }() // after a commit it does nothing
	_, _, err = thread.Post(t.Context(), open, f.draft(two, "under way"))
	require.NoError(t, err)

	heard, asked := newBroadcaster(nil), newAsker(nil)
	broadcast, companion := f.broadcast(heard, listener.Config{}), f.companion(asked, listener.Config{})
	require.Zero(t, outboxtest.Drain(t, broadcast), "latest: only events that commit from now on")
	require.Equal(t, listener.Report{Delivered: 2}, outboxtest.Drain(t, companion), "earliest: all events that are kept")

	require.NoError(t, open.Commit(t.Context()))
	f.post(one, "new")
	require.Equal(t, listener.Report{Delivered: 2}, outboxtest.Drain(t, broadcast))
	require.Equal(t, listener.Report{Delivered: 2}, outboxtest.Drain(t, companion))
	require.Equal(t, []string{"new"}, heard.handled(one))
	require.Equal(t, []string{"old", "older", "new"}, asked.handled(one))
	for _, r := range []*record{heard.record, asked.record} {
		require.Equal(t, []string{"under way"}, r.handled(two))
	}
}

// TestCursorSurvivesARestart handles each message with a new listener, as after a deployment.
func TestCursorSurvivesARestart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.thread()
	f.attached(newBroadcaster(nil), listener.Config{})
	for _, text := range []string{"a", "b", "c"} {
		f.post(id, text)
		heard := newBroadcaster(nil)
		outboxtest.Drain(t, f.broadcast(heard, listener.Config{}))
		require.Equal(t, []string{text}, heard.handled(id))
	}
}

// TestPauseAndResume pauses one of two running listeners.
func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.thread()
	heard, asked := newBroadcaster(nil), newAsker(nil)
	f.start(f.attached(heard, listener.Config{}))
	f.start(f.companion(asked, listener.Config{}))
	f.post(id, "a")
	heard.await(t, func(got []delivery) bool { return len(got) == 1 })

	require.NoError(t, f.admin().Pause(t.Context(), "broadcast"))
	f.post(id, "b", "c")
	asked.await(t, func(got []delivery) bool { return len(got) == 3 })
	require.Equal(t, []string{"a"}, heard.handled(id))
	paused := f.status("broadcast")
	require.Equal(t, admin.ListenerPaused, paused.State)
	require.GreaterOrEqual(t, paused.Unread, int64(2))
	require.NotEqual(t, admin.ListenerPaused, f.status("companion").State)

	require.NoError(t, f.admin().Resume(t.Context(), "broadcast"))
	heard.await(t, func(got []delivery) bool { return len(got) == 3 })
	require.Equal(t, []string{"a", "b", "c"}, heard.handled(id))
}

// TestSkip makes each listener skip a message that always fails.
func TestSkip(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	hopeless := outbox.RetryAfter(time.Hour, errors.New("will not work"))
	heard := newBroadcaster(func(d outbox.Delivery[events.MessageCreated]) error {
		if d.Payload.Text == "bad" {
			return hopeless
		}
		return nil
	})
	asked := newAsker(func(_ context.Context, _ pgx.Tx, d outbox.Delivery[events.MessageCreated]) error {
		if d.Payload.Text == "bad" {
			return hopeless
		}
		return nil
	})
	broadcast, companion := f.attached(heard, listener.Config{}), f.companion(asked, listener.Config{})
	one, two := f.thread(), f.thread()
	f.post(one, "bad", "after")
	f.post(two, "elsewhere")

	// broadcast parks the thread and continues with the other; companion waits.
	require.Equal(t, listener.Report{Delivered: 1, Retried: 1}, outboxtest.Drain(t, broadcast))
	require.Equal(t, listener.Report{Retried: 1}, outboxtest.Drain(t, companion))
	aside := f.status("broadcast")
	require.EqualValues(t, 1, aside.ParkedKeys)
	require.EqualValues(t, 2, aside.ParkedEvents)
	blocked := f.status("companion")
	require.Equal(t, admin.ListenerBlocked, blocked.State)
	require.Equal(t, "will not work", blocked.LastError)

	for _, name := range []string{"broadcast", "companion"} {
		skipped, err := f.admin().Skip(t.Context(), name, uuid.Nil)
		require.NoError(t, err)
		require.Equal(t, blocked.Head.UUID, skipped.ID)
	}
	require.Equal(t, listener.Report{Delivered: 1}, outboxtest.Drain(t, broadcast))
	require.Equal(t, listener.Report{Delivered: 2}, outboxtest.Drain(t, companion))
	for _, r := range []*record{heard.record, asked.record} {
		require.Equal(t, []string{"after"}, r.handled(one))
		require.Equal(t, []string{"elsewhere"}, r.handled(two))
	}
	letters := f.letters()
	require.Len(t, letters, 2)
	for i, name := range []string{"broadcast", "companion"} {
		require.Equal(t, letter{Listener: name, Text: "bad", Error: "skipped by operator: will not work", Attempts: 1, ID: blocked.Head.UUID}, letters[i])
	}
}

// TestRewind makes both listeners read again: broadcast pushes again, and companion, whose jobs have a dedupe key, requests
// nothing twice.
func TestRewind(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.thread()
	heard, asked := newBroadcaster(nil), newAsker(nil)
	broadcast, companion := f.attached(heard, listener.Config{}), f.companion(asked, listener.Config{})
	f.post(id, "a", "b", "c")
	outboxtest.Drain(t, broadcast)
	outboxtest.Drain(t, companion)
	require.Equal(t, 3, f.jobs())

	n, err := f.admin().Rewind(t.Context(), "companion", time.Time{})
	require.NoError(t, err)
	require.EqualValues(t, 3, n)
	require.Equal(t, listener.Report{Delivered: 3}, outboxtest.Drain(t, companion))
	require.Equal(t, []string{"a", "b", "c", "a", "b", "c"}, asked.handled(id))
	require.Equal(t, 3, f.jobs())
	require.Zero(t, outboxtest.Drain(t, broadcast), "the other listener is not rewound")

	var second time.Time
	require.NoError(t, f.pool.QueryRow(t.Context(), "SELECT created_at FROM outbox.log ORDER BY seq OFFSET 1 LIMIT 1").Scan(&second))
	_, err = f.admin().Rewind(t.Context(), "broadcast", second)
	require.NoError(t, err)
	outboxtest.Drain(t, broadcast)
	require.Equal(t, []string{"a", "b", "c", "b", "c"}, heard.handled(id))
}

// TestDetach detaches broadcast, which then attaches again as a new listener.
func TestDetach(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.thread()
	heard := newBroadcaster(nil)
	broadcast := f.attached(heard, listener.Config{})
	f.post(id, "never heard")
	_, err := f.admin().Detach(t.Context(), "broadcast")
	require.NoError(t, err)
	_, err = f.admin().Detach(t.Context(), "broadcast")
	var unknown *admin.UnknownListenerError
	require.ErrorAs(t, err, &unknown)

	require.Zero(t, outboxtest.Drain(t, broadcast))
	f.post(id, "new")
	require.Equal(t, listener.Report{Delivered: 1}, outboxtest.Drain(t, broadcast))
	require.Equal(t, []string{"new"}, heard.handled(id))
}
