package receive_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

// TestReceiveWaitsForTheDatabase: while the database is away nothing is charged and nothing is kept, and messages are applied
// when it answers. Two lines say so.
func TestReceiveWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	pool := database(t)
	proxy := pgtest.NewProxy(t, pool)
	through := proxy.Pool(t)
	log := runtimetest.NewLogSpy()
	e := &effects{}
	var calls atomic.Int64
	e.set(func(context.Context, pgx.Tx, counted) error {
		if calls.Add(1)%20 == 0 {
			proxy.Cut() // in a transaction
		}
		return nil
	})
	var failed atomic.Int64
	r := receiver(t, through, e, receive.Config{
		BatchSize: 10, Logger: log.Logger(), Observer: &receive.Observer{Failed: func(receive.Failed) { failed.Add(1) }},
	})
	outcomes, err := r.Receive(t.Context(), messages(40, "a", "b", "c"))
	require.NoError(t, err)
	require.NotContains(t, outcomes, receive.Outcome(""))
	requireCounted(t, pool, 40, "a", "b", "c")
	require.Zero(t, kept(t, pool, "parked")+kept(t, pool, "dead"))
	require.Zero(t, failed.Load())
	log.Await(t, "messages wait: the database or a target does not answer")
	log.Await(t, "messages do not wait any more")
}

// TestReceiveChargesWhatKillsItsConnection: a message whose effect loses the connection each time is not tried for ever.
func TestReceiveChargesWhatKillsItsConnection(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t) // pauses of a few seconds
	pool := database(t)
	e := &effects{}
	e.set(func(ctx context.Context, tx pgx.Tx, p counted) error {
		if p.Key == "a" && p.N == 2 {
			_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
			return err
		}
		return nil
	})
	r := receiver(t, pool, e, receive.Config{Attempts: 1, MaxAttempts: 1})
	outcomes, err := r.Receive(t.Context(), messages(3, "a", "b"))
	require.NoError(t, err)
	require.Equal(t, receive.Dead, outcomes[2])
	requireCounted(t, pool, 3, "b")
}

// TestReceiveWaitsForAnUnavailableTarget: an error that is marked as unavailable is not charged.
func TestReceiveWaitsForAnUnavailableTarget(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	var calls atomic.Int64
	e.set(func(context.Context, pgx.Tx, counted) error {
		if calls.Add(1) < 5 {
			return consume.Unavailable(errors.New("the target is away"))
		}
		return nil
	})
	waiting := make(chan error, 10)
	r := receiver(t, pool, e, receive.Config{
		Attempts: 1, MaxAttempts: 1, Observer: &receive.Observer{Waiting: func(err error) { waiting <- err }},
	})
	outcomes, err := r.Receive(t.Context(), messages(2, "a"))
	require.NoError(t, err)
	require.Equal(t, []receive.Outcome{receive.Applied, receive.Applied}, outcomes)
	require.ErrorContains(t, pgtest.Receive(t, waiting, "the begin"), "the target is away")
	require.NoError(t, pgtest.Receive(t, waiting, "the end"))
}

// TestReceiveStops: when the context ends, messages without an outcome are left, and nothing is half done.
func TestReceiveStops(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	ctx, cancel := context.WithCancel(t.Context())
	e.set(func(_ context.Context, _ pgx.Tx, p counted) error {
		if p.N == 15 {
			cancel()
		}
		return nil
	})
	ms := messages(50, "a")
	r := receiver(t, pool, e, receive.Config{BatchSize: 10})
	outcomes, err := r.Receive(ctx, ms)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, receive.Applied, outcomes[19], "the running transaction is finished")
	require.Equal(t, receive.Outcome(""), outcomes[20])
	requireCounted(t, pool, 20, "a")

	own, hung := context.WithCancel(t.Context())
	defer hung()
	e.set(func(ctx context.Context, _ pgx.Tx, p counted) error {
		hung()
		<-ctx.Done()
		return ctx.Err()
	})
	r = receiver(t, pool, e, receive.Config{ShutdownTimeout: 50 * time.Millisecond})
	outcomes, err = r.Receive(own, ms[20:21])
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []receive.Outcome{""}, outcomes)
	require.Zero(t, kept(t, pool, "parked"))
}

// TestReceiveBoundsAnEffect: a method that hangs has failed after the EffectTimeout.
func TestReceiveBoundsAnEffect(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	e.set(func(ctx context.Context, tx pgx.Tx, p counted) error {
		if p.N == 1 {
			_, err := tx.Exec(ctx, "SELECT pg_sleep(600)")
			return err
		}
		return nil
	})
	r := receiver(t, pool, e, receive.Config{EffectTimeout: 200 * time.Millisecond, Attempts: 1, MaxAttempts: 1})
	ms := messages(2, "a")
	outcomes, err := r.Receive(t.Context(), []receive.Message{ms[0]})
	require.NoError(t, err)
	require.Equal(t, []receive.Outcome{receive.Dead}, outcomes)
	require.Contains(t, pgtest.Value[string](t, pool, "SELECT error FROM outbox.inbox_messages"), "it did not end within the EffectTimeout 200ms")
}

// TestReceiveWithBegin: Begin runs in each transaction. Its errors hold messages up, and one of Stop ends Receive and Run.
func TestReceiveWithBegin(t *testing.T) {
	t.Parallel()
	pool := database(t)
	over := errors.New("over")
	var calls atomic.Int64
	r := receiver(t, pool, &effects{}, receive.Config{BatchSize: 1, Begin: func(ctx context.Context, tx pgx.Tx) error {
		switch calls.Add(1) {
		case 1:
			return errors.New("not now")
		case 4:
			return receive.Stop(over)
		}
		_, err := tx.Exec(ctx, "SELECT set_config('outbox.test', 'x', true)")
		return err
	}})
	outcomes, err := r.Receive(t.Context(), messages(5, "a"))
	require.ErrorIs(t, err, over)
	require.Equal(t, []receive.Outcome{receive.Applied, receive.Applied, "", "", ""}, outcomes)
	requireCounted(t, pool, 2, "a")
}

// TestReceiveIgnoresUnknownTopics: on request, messages of other consumers are acknowledged and not kept.
func TestReceiveIgnoresUnknownTopics(t *testing.T) {
	t.Parallel()
	pool := database(t)
	other := message("a", 1)
	other.Attributes["type"] = "test.other"
	for _, want := range []receive.Outcome{receive.Ignored, receive.Dead} {
		r := receiver(t, pool, &effects{}, receive.Config{IgnoreUnknown: want == receive.Ignored})
		outcomes, err := r.Receive(t.Context(), []receive.Message{other, message("b", 1)})
		require.NoError(t, err)
		require.Equal(t, want, outcomes[0])
	}
	require.Equal(t, "test.other", pgtest.Value[string](t, pool, "SELECT type FROM outbox.inbox_messages"))
}

// TestReceiveEndsWithOnlyDeadLetters: a consumer that cannot apply anything stops.
func TestReceiveEndsWithOnlyDeadLetters(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	e.set(func(context.Context, pgx.Tx, counted) error { return consume.Permanent(errors.New("never")) })
	r := receiver(t, pool, e, receive.Config{MaxDeadInARow: 5, BatchSize: 1})
	_, err := r.Receive(t.Context(), messages(20, "a"))
	require.ErrorIs(t, err, receive.ErrOnlyDead)
	require.Equal(t, 5, kept(t, pool, "dead"))
}

// TestSeveralReceiversShareWhatIsParked: several processes retry parked messages, and each effect happens once and in order,
// while more messages of the keys arrive.
func TestSeveralReceiversShareWhatIsParked(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	var calls atomic.Int64
	e.set(func(_ context.Context, _ pgx.Tx, p counted) error {
		if calls.Add(1)%3 == 0 {
			return errors.New("now and then")
		}
		return nil
	})
	cfg := quick(receive.Config{Attempts: 1, MaxAttempts: 100_000, BatchSize: 5})
	keys := []string{"a", "b", "c", "d", "e"}
	var receivers []*receive.Receiver
	for range 3 {
		r := receiver(t, pool, e, cfg)
		start(t, r)
		receivers = append(receivers, r)
	}
	const n = 40
	var writing sync.WaitGroup
	for i, key := range keys {
		writing.Go(func() {
			for _, m := range messages(n, key) {
				_, err := receivers[i%3].Receive(t.Context(), []receive.Message{m})
				pgtest.Check(t, err)
			}
		})
	}
	writing.Wait()
	pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.inbox_messages")
	requireCounted(t, pool, n, keys...)
}

// TestReceiveSweepsWhatACrashHasLeft: a message that waits behind nobody is found.
func TestReceiveSweepsWhatACrashHasLeft(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	e.set(func(context.Context, pgx.Tx, counted) error { return errors.New("no") })
	r := receiver(t, pool, e, quick(receive.Config{Attempts: 1, MaxAttempts: 1000}))
	_, err := r.Receive(t.Context(), messages(3, "a"))
	require.NoError(t, err)
	pgtest.Execute(t, pool, "UPDATE outbox.inbox_messages SET next_attempt_at = 'infinity'")
	e.set(nil)
	start(t, r)
	pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.inbox_messages")
	requireCounted(t, pool, 3, "a")
}

// TestReceiveHonoursRetryAfter: a message that asks for a later attempt is parked until then.
func TestReceiveHonoursRetryAfter(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	e.set(func(context.Context, pgx.Tx, counted) error {
		return consume.RetryAfter(time.Hour, errors.New("later"))
	})
	r := receiver(t, pool, e, receive.Config{})
	outcomes, err := r.Receive(t.Context(), messages(1, "a"))
	require.NoError(t, err)
	require.Equal(t, []receive.Outcome{receive.Parked}, outcomes)
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.inbox_messages WHERE attempts = 1 AND next_attempt_at > statement_timestamp() + interval '50 minutes'"))
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	pool := runtimetest.Unconnected(t)
	_, err := receive.New(nil, consumerOf(t, &effects{}), receive.Config{})
	require.EqualError(t, err, "new receiver: no pool given (nil)")
	_, err = receive.New(pool, nil, receive.Config{})
	require.EqualError(t, err, "new receiver: no consumer given (nil)")
	for want, cfg := range map[string]receive.Config{
		"field BatchSize -1 is not between 1 and 10000":    {BatchSize: -1},
		"field Concurrency 1001 is not between 1 and 1000": {Concurrency: 1001},
		"field BaseDelay -1s is negative":                  {BaseDelay: -time.Second},
	} {
		_, err := receive.New(pool, consumerOf(t, &effects{}), cfg)
		require.EqualError(t, err, "new receiver: "+want)
	}
}

// TestParkedMessageWaitsForEarlierOnes: a message that is due does not overtake a parked one of its key that is due later.
// Concurrent replays of two dead letters of a key make both due, because neither sees the other.
func TestParkedMessageWaitsForEarlierOnes(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	e.set(func(context.Context, pgx.Tx, counted) error { return consume.Permanent(errors.New("no")) })
	r := receiver(t, pool, e, quick(receive.Config{}))
	_, err := r.Receive(t.Context(), append(messages(2, "a"), message("b", 1)))
	require.NoError(t, err)
	require.Equal(t, 3, kept(t, pool, "dead"))
	e.set(nil)
	pgtest.Execute(t, pool, `UPDATE outbox.inbox_messages SET status = 'parked', next_attempt_at = CASE place
		WHEN 'test:a/1' THEN now() + interval '1 day' WHEN 'test:a/2' THEN now() - interval '1 minute' ELSE now() END`)
	stop := start(t, r)
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM effects WHERE key = 'b'")
	require.NoError(t, stop()) // a/2 was looked at before b/1, and Run has finished both
	requireCounted(t, pool, 0, "a")
	require.Equal(t, 2, kept(t, pool, "parked"))
	pgtest.Execute(t, pool, "UPDATE outbox.inbox_messages SET next_attempt_at = now() WHERE place = 'test:a/1'")
	start(t, r)
	pgtest.Settles(t, pool, 2, "SELECT count(*) FROM effects WHERE key = 'a'")
	requireCounted(t, pool, 2, "a")
}
