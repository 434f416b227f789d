package events_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/threads/events"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
)

// letter is a row of outbox.dead_letters.
type letter struct {
	Listener, Text, Error string
	Attempts              int
	ID                    uuid.UUID
}

// letters returns the dead letters, oldest first.
func (f *fixture) letters() []letter {
	f.t.Helper()
	rows, err := f.pool.Query(f.t.Context(), "SELECT listener, payload, error, attempts, id FROM outbox.dead_letters ORDER BY no")
	require.NoError(f.t, err)
	letters, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l letter, err error) {
		var payload []byte
		if err = row.Scan(&l.Listener, &payload, &l.Error, &l.Attempts, &l.ID); err != nil {
			return l, err
		}
		var p events.MessageCreated
		err = json.Unmarshal(payload, &p)
		l.Text = p.Text
		return l, err
	})
	require.NoError(f.t, err)
	return letters
}

// TestRetryBacksOff lets one message fail three times. Its attempts are numbered, with growing delays. The messages after
// it in its thread wait, those of other threads do not.
func TestRetryBacksOff(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	failing, other := f.thread(), f.thread()
	heard := newBroadcaster(func(d outbox.Delivery[events.MessageCreated]) error {
		if d.Payload.Text != "bad" || d.Attempt == d.MaxAttempts {
			return nil
		}
		return errors.New("no client can be reached")
	})
	broadcast := f.attached(heard, listener.Config{Retry: outbox.Retry{MaxAttempts: 4}})
	f.post(failing, "bad", "next")
	f.post(other, "fine")
	f.start(broadcast)

	got := heard.await(t, func(got []delivery) bool { return len(handled(got, failing)) == 2 })
	require.Equal(t, []string{"bad", "next"}, handled(got, failing))
	var attempts []int
	var at []time.Time
	for _, d := range got {
		require.Equal(t, 4, d.MaxAttempts)
		if d.Payload.Text == "bad" {
			attempts, at = append(attempts, d.Attempt), append(at, d.at)
		}
	}
	require.Equal(t, []int{1, 2, 3, 4}, attempts)
	require.Equal(t, []string{"fine"}, handled(got[:2], other), "before the second attempt")
	for i, atLeast := range []time.Duration{25, 50, 100} { // at least half of 50 ms, doubled each time
		require.GreaterOrEqual(t, at[i+1].Sub(at[i]), atLeast*time.Millisecond)
	}
	require.Empty(t, f.letters())
}

func TestAttemptsSpentMakeADeadLetter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.thread()
	heard := newBroadcaster(func(d outbox.Delivery[events.MessageCreated]) error {
		if d.Payload.Text == "bad" {
			return outbox.RetryAfter(0, errors.New("no client can be reached"))
		}
		return nil
	})
	broadcast := f.attached(heard, listener.Config{Retry: outbox.Retry{MaxAttempts: 4}})
	f.post(id, "good", "bad", "next")
	require.Equal(t, listener.Report{Delivered: 2, Retried: 3, Dead: 1}, outboxtest.Drain(t, broadcast))
	require.Equal(t, []string{"good", "next"}, heard.handled(id))
	letters := f.letters()
	require.Len(t, letters, 1)
	letters[0].ID = uuid.Nil
	require.Equal(t, []letter{{Listener: "broadcast", Text: "bad", Error: "no client can be reached", Attempts: 4}}, letters)
}

// TestPermanentFailureIsADeadLetter lets each listener fail permanently on another message. Each has one dead letter and
// continues, and neither is affected by the failure of the other.
func TestPermanentFailureIsADeadLetter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.thread()
	heard := newBroadcaster(func(d outbox.Delivery[events.MessageCreated]) error {
		if d.Payload.Text == "too loud" {
			return outbox.Permanent(errors.New("not to be broadcast"))
		}
		return nil
	})
	asked := newAsker(func(_ context.Context, _ pgx.Tx, d outbox.Delivery[events.MessageCreated]) error {
		if d.Payload.Text == "too hard" {
			return outbox.Permanent(errors.New("not to be answered"))
		}
		return nil
	})
	broadcast, companion := f.attached(heard, listener.Config{}), f.companion(asked, listener.Config{})
	f.post(id, "hello", "too loud", "too hard", "bye")

	require.Equal(t, listener.Report{Delivered: 3, Dead: 1}, outboxtest.Drain(t, broadcast))
	require.Equal(t, listener.Report{Delivered: 3, Dead: 1}, outboxtest.Drain(t, companion))
	require.Equal(t, []string{"hello", "too hard", "bye"}, heard.handled(id))
	require.Equal(t, []string{"hello", "too loud", "bye"}, asked.handled(id))
	require.Equal(t, 3, f.jobs(), "the writes of a failed handler are undone")

	letters := f.letters()
	for i := range letters {
		require.Equal(t, 1, f.count("SELECT count(*) FROM outbox.log WHERE id = $1 AND payload ->> 'text' = $2", letters[i].ID, letters[i].Text))
		letters[i].ID = uuid.Nil
	}
	require.Equal(t, []letter{
		{Listener: "broadcast", Text: "too loud", Error: "not to be broadcast", Attempts: 1},
		{Listener: "companion", Text: "too hard", Error: "not to be answered", Attempts: 1},
	}, letters)
}
