package receive_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestRetryOfTwoProcesses: of two processes that find a parked message due, one tries it, and the attempt is counted once.
func TestRetryOfTwoProcesses(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	var calls atomic.Int64
	e.set(func(context.Context, pgx.Tx, counted) error {
		calls.Add(1)
		return errors.New("not yet")
	})
	cfg := receive.Config{Attempts: 1, BaseDelay: never, MaxDelay: never, PollInterval: 10 * time.Millisecond}
	require.Equal(t, receive.Parked, one(t, receiver(t, pool, e, cfg), message("a", 1)))
	begun, resume := make(chan struct{}, 100), make(chan struct{})
	late := cfg
	late.Begin = func(context.Context, pgx.Tx) error { // it has found the message due, and not taken it
		begun <- struct{}{}
		<-resume
		return nil
	}
	pgtest.Execute(t, pool, "UPDATE outbox.inbox_messages SET next_attempt_at = statement_timestamp()")
	stopLate := start(t, receiver(t, pool, e, late))
	pgtest.Receive(t, begun, "a retry")
	stop := start(t, receiver(t, pool, e, cfg))
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.inbox_messages WHERE attempts = 2")
	require.NoError(t, stop())
	close(resume)
	require.NoError(t, stopLate())
	require.Equal(t, int64(2), calls.Load())
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.inbox_messages WHERE attempts = 2"))
}

// TestLateChargeDoesNotCount: a process that has failed with a parked message, and records that after another process has
// failed too, does not count it again.
func TestLateChargeDoesNotCount(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	e.set(func(context.Context, pgx.Tx, counted) error { return errors.New("not yet") })
	cfg := receive.Config{Attempts: 1, BaseDelay: never, MaxDelay: never, PollInterval: 10 * time.Millisecond}
	require.Equal(t, receive.Parked, one(t, receiver(t, pool, e, cfg), message("a", 1)))
	begun, resume := make(chan struct{}, 100), make(chan struct{})
	late := cfg
	var begins atomic.Int64
	late.Begin = func(context.Context, pgx.Tx) error {
		if begins.Add(1) == 2 { // the first one has tried the message, this one charges it
			begun <- struct{}{}
			<-resume
		}
		return nil
	}
	pgtest.Execute(t, pool, "UPDATE outbox.inbox_messages SET next_attempt_at = statement_timestamp()")
	stopLate := start(t, receiver(t, pool, e, late))
	pgtest.Receive(t, begun, "a charge")
	stop := start(t, receiver(t, pool, e, cfg))
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.inbox_messages WHERE attempts = 2")
	require.NoError(t, stop())
	close(resume)
	require.NoError(t, stopLate())
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.inbox_messages WHERE attempts = 2"))
}

// TestRetryInAnotherProcessIsNotAwaited: a process does not wait for a parked message that another one is trying.
func TestRetryInAnotherProcessIsNotAwaited(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	e.set(func(context.Context, pgx.Tx, counted) error { return errors.New("not yet") })
	cfg := receive.Config{Attempts: 1, BaseDelay: time.Nanosecond, PollInterval: 10 * time.Millisecond}
	require.Equal(t, receive.Parked, one(t, receiver(t, pool, e, cfg), message("a", 1)))
	in, out := make(chan struct{}), make(chan struct{})
	e.set(func(context.Context, pgx.Tx, counted) error {
		in <- struct{}{}
		<-out
		return nil
	})
	start(t, receiver(t, pool, e, cfg))
	pgtest.Receive(t, in, "the retry")
	looks := make(chan struct{}, 100)
	other := cfg
	other.Begin = func(context.Context, pgx.Tx) error {
		select {
		case looks <- struct{}{}:
		default:
		}
		return nil
	}
	start(t, receiver(t, pool, &effects{}, other))
	for range 3 {
		pgtest.Receive(t, looks, "a look of the other process")
	}
	close(out)
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM effects")
}

// TestKeepingWhatAnotherProcessKeeps: two processes that find a message to be poison, because a partition has moved, keep it once,
// and none of them waits.
func TestKeepingWhatAnotherProcessKeeps(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	in, out := make(chan struct{}), make(chan struct{})
	e.set(func(context.Context, pgx.Tx, counted) error {
		in <- struct{}{}
		<-out
		return nil
	})
	bad := receive.Message{Message: consume.Message{Body: []byte("hello")}, Place: "test:" + uuid.NewString(), Key: "a"}
	late := receiver(t, pool, e, receive.Config{Observer: &receive.Observer{Waiting: func(err error) { t.Errorf("waits: %v", err) }}})
	received := make(chan []receive.Outcome, 1)
	go func() {
		outcomes, err := late.Receive(t.Context(), []receive.Message{bad, message("a", 1)})
		pgtest.Check(t, err)
		received <- outcomes
	}()
	pgtest.Receive(t, in, "an effect") // it has looked for what is kept
	require.Equal(t, receive.Dead, one(t, receiver(t, pool, &effects{}, receive.Config{}), bad))
	close(out)
	require.Equal(t, []receive.Outcome{receive.Dead, receive.Applied}, pgtest.Receive(t, received, "the outcomes"))
	require.Equal(t, 1, kept(t, pool, "dead"))
}
