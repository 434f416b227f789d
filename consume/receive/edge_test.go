package receive_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

// never is a time that no test waits for.
const never = time.Hour

// one settles one message and returns its outcome.
func one(t testing.TB, r *receive.Receiver, m receive.Message) receive.Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	outcomes, err := r.Receive(ctx, []receive.Message{m})
	require.NoError(t, err)
	return outcomes[0]
}

// raise returns an effect that fails n times with a code of PostgreSQL.
func raise(code string, n int64) func(ctx context.Context, tx pgx.Tx, p counted) error {
	var calls atomic.Int64
	return func(ctx context.Context, tx pgx.Tx, p counted) error {
		if calls.Add(1) > n {
			return nil
		}
		_, err := tx.Exec(ctx, fmt.Sprintf("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '%s'; END $$", code))
		return err
	}
}

// TestReceiveDoesNotRepeatWhatIsKept: a message that is parked or a dead letter has no effect when the broker delivers it again,
// also if it would succeed now.
func TestReceiveDoesNotRepeatWhatIsKept(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	r := receiver(t, pool, e, receive.Config{Attempts: 1})
	m := message("a", 1)
	m.Key = "" // nothing waits behind it
	for want, err := range map[receive.Outcome]error{receive.Parked: errors.New("not yet"), receive.Dead: consume.Permanent(errors.New("never"))} {
		pgtest.Execute(t, pool, "DELETE FROM outbox.inbox_messages")
		e.set(func(context.Context, pgx.Tx, counted) error { return err })
		require.Equal(t, want, one(t, r, m))
		e.set(nil)
		require.Equal(t, want, one(t, r, m))
		require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM effects"))
	}
}

// TestReceiveWaitsBetweenAttempts: attempts in a row have a pause, and those of a parked message a growing delay.
func TestReceiveWaitsBetweenAttempts(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e, calls := &effects{}, make(chan time.Time, 10)
	e.set(func(context.Context, pgx.Tx, counted) error {
		calls <- time.Now()
		return errors.New("no")
	})
	r := receiver(t, pool, e, receive.Config{Attempts: 3, BaseDelay: never, MaxDelay: 100 * never})
	require.Equal(t, receive.Parked, one(t, r, message("a", 1)))
	require.Len(t, calls, 3)
	first, second, third := <-calls, <-calls, <-calls
	require.GreaterOrEqual(t, second.Sub(first), 50*time.Millisecond)
	require.GreaterOrEqual(t, third.Sub(second), 100*time.Millisecond)
	const due = "SELECT extract(epoch FROM next_attempt_at - failed_at) / 60 FROM outbox.inbox_messages"
	require.InDelta(t, 45, pgtest.Value[float64](t, pool, due), 15.1, "minutes")
	pgtest.Execute(t, pool, "UPDATE outbox.inbox_messages SET next_attempt_at = statement_timestamp()")
	start(t, r)
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.inbox_messages WHERE attempts = 4")
	require.InDelta(t, 90, pgtest.Value[float64](t, pool, due), 30.1, "minutes")
}

// TestReceiveHonoursAShortRetryAfter: a message that asks for an attempt soon gets it then, and is not parked.
func TestReceiveHonoursAShortRetryAfter(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	var first atomic.Int64
	e.set(func(context.Context, pgx.Tx, counted) error {
		if first.CompareAndSwap(0, time.Now().UnixNano()) {
			return consume.RetryAfter(700*time.Millisecond, errors.New("soon"))
		}
		return nil
	})
	require.Equal(t, receive.Applied, one(t, receiver(t, pool, e, receive.Config{Attempts: 2}), message("a", 1)))
	require.GreaterOrEqual(t, time.Since(time.Unix(0, first.Load())), 700*time.Millisecond)
}

// woken starts r, whose PollInterval is long, and waits until it sleeps after its first sweep: then it looks only when it is
// woken.
func woken(t testing.TB, pool *pgxpool.Pool, r *receive.Receiver, e *effects) {
	t.Helper()
	e.set(func(context.Context, pgx.Tx, counted) error { return errors.New("not yet") })
	require.Equal(t, receive.Parked, one(t, r, message("swept", 1)))
	pgtest.Execute(t, pool, "UPDATE outbox.inbox_messages SET next_attempt_at = 'infinity'")
	start(t, r)
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.inbox_messages WHERE next_attempt_at < 'infinity'")
	pgtest.Execute(t, pool, "DELETE FROM outbox.inbox_messages")
}

// TestReceiveBuriesAParkedMessage: a parked message that turns out to be permanent is a dead letter, and its key continues at
// once, not with the next sweep.
func TestReceiveBuriesAParkedMessage(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	r := receiver(t, pool, e, receive.Config{Attempts: 1, BaseDelay: time.Nanosecond, PollInterval: never})
	woken(t, pool, r, e)
	var calls atomic.Int64
	e.set(func(_ context.Context, _ pgx.Tx, p counted) error {
		switch {
		case p.N > 1:
			return nil
		case calls.Add(1) == 1:
			return errors.New("not yet")
		}
		return consume.Permanent(errors.New("never"))
	})
	ms := messages(3, "a")
	require.Equal(t, receive.Parked, one(t, r, ms[0]))
	_, err := r.Receive(t.Context(), ms[1:]) // which are put behind it, and wake r
	require.NoError(t, err)
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.inbox_messages WHERE status = 'dead' AND attempts = 2")
	pgtest.Settles(t, pool, 2, "SELECT count(*) FROM effects")
	require.Zero(t, kept(t, pool, "parked"))
}

// TestReceivePromotesWhatCameTooLate: a message that is put behind another one while that one is applied is not left there
// until the next sweep.
func TestReceivePromotesWhatCameTooLate(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	cfg := receive.Config{Attempts: 1, BaseDelay: time.Nanosecond, PollInterval: never, Concurrency: 2} // a and c share a strand
	r := receiver(t, pool, e, cfg)
	woken(t, pool, r, e)
	require.Equal(t, receive.Parked, one(t, r, message("a", 1)))
	in, out := make(chan struct{}), make(chan struct{})
	e.set(func(context.Context, pgx.Tx, counted) error {
		in <- struct{}{} // in the transaction that has found the first message parked
		<-out
		return nil
	})
	received := make(chan error, 1)
	go func() {
		_, err := r.Receive(t.Context(), []receive.Message{message("a", 2), message("c", 1)})
		received <- err
	}()
	pgtest.Receive(t, in, "the effect")
	stop := start(t, receiver(t, pool, &effects{}, cfg))
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM effects WHERE key = 'a'")
	require.NoError(t, stop())
	e.set(nil)
	close(out)
	require.NoError(t, pgtest.Receive(t, received, "the end of Receive"))
	pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.inbox_messages")
	requireCounted(t, pool, 2, "a")
}

// TestReceiveChargesNobody: an error that is not the message's fault is not counted as an attempt.
func TestReceiveChargesNobody(t *testing.T) {
	t.Parallel()
	pool := database(t)
	for name, code := range map[string]string{
		"serialization": "40001", "deadlock": "40P01", "lock": "55P03", "standby": "25006", "resources": "53300", "shutdown": "57P01", "system": "58030",
		"connection": "08006",
	} {
		e := &effects{}
		e.set(raise(code, 3))
		r := receiver(t, pool, e, receive.Config{Attempts: 1, MaxAttempts: 1, Observer: &receive.Observer{Failed: func(f receive.Failed) { t.Errorf("charged: %v", f.Err) }}})
		require.Equal(t, receive.Applied, one(t, r, message(name, 1)), name)
	}
}

// TestReceiveChargesTheMessage: a violated constraint, at the statement or at the commit, and an error of PostgreSQL that the
// method hides are the message's fault, at the first attempt.
func TestReceiveChargesTheMessage(t *testing.T) {
	t.Parallel()
	pool := database(t)
	pgtest.Execute(t, pool, "CREATE TABLE once (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")
	cfg := receive.Config{Attempts: 1, MaxAttempts: 1, Logger: runtimetest.DiscardLogger(), Observer: &receive.Observer{
		Waiting: func(err error) { t.Errorf("waited: %v", err) },
	}}
	for name, effect := range map[string]func(ctx context.Context, tx pgx.Tx, p counted) error{
		"statement": raise("23505", 100),
		"commit": func(ctx context.Context, tx pgx.Tx, _ counted) error {
			_, err := tx.Exec(ctx, "INSERT INTO once VALUES (1), (1)")
			return err
		},
	} {
		e := &effects{}
		e.set(effect)
		require.Equal(t, receive.Dead, one(t, receiver(t, pool, e, cfg), message(name, 1)), name)
	}
	ib, err := inbox.New(inbox.Config{Group: "counts"})
	require.NoError(t, err)
	hiding, err := consume.New(ib, consume.Handle(countedTopic, &effects{}, func(_ *effects, ctx context.Context, tx pgx.Tx, _ consume.Delivery[counted]) error {
		_, _ = tx.Exec(ctx, "SELECT 1/0")
		return nil
	}))
	require.NoError(t, err)
	r, err := receive.New(pool, hiding, cfg)
	require.NoError(t, err)
	require.Equal(t, receive.Dead, one(t, r, message("hidden", 1)))
}

// TestReceiveWaitsWithoutItsTables: a database whose tables are not there charges no message.
func TestReceiveWaitsWithoutItsTables(t *testing.T) {
	t.Parallel()
	pool := database(t)
	waiting := make(chan error, 100)
	r := receiver(t, pool, &effects{}, receive.Config{Attempts: 1, MaxAttempts: 1, Observer: &receive.Observer{Waiting: func(err error) { waiting <- err }}})
	for _, table := range []string{"inbox_messages", "processed_events"} {
		pgtest.Execute(t, pool, "ALTER TABLE outbox."+table+" RENAME TO gone")
		done := make(chan receive.Outcome, 1)
		go func() {
			outcomes, _ := r.Receive(t.Context(), []receive.Message{message(table, 1)})
			done <- outcomes[0]
		}()
		require.Error(t, pgtest.Receive(t, waiting, "the begin"))
		pgtest.Execute(t, pool, "ALTER TABLE outbox.gone RENAME TO "+table)
		require.Equal(t, receive.Applied, pgtest.Receive(t, done, "the outcome"))
		require.NoError(t, pgtest.Receive(t, waiting, "the end"))
	}
}

// TestReceiveAtReadCommitted: the default isolation of the role does not matter.
func TestReceiveAtReadCommitted(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	var level atomic.Value
	e.set(func(ctx context.Context, tx pgx.Tx, _ counted) error {
		var is string
		err := tx.QueryRow(ctx, "SHOW transaction_isolation").Scan(&is)
		level.Store(is)
		return err
	})
	pgtest.Execute(t, pool, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database()); END $$")
	pool.Reset()
	require.Equal(t, receive.Applied, one(t, receiver(t, pool, e, receive.Config{}), message("a", 1)))
	require.Equal(t, "read committed", level.Load())
}

// TestReceiveSeparatesUnreadableMessages: two messages without an id at one place are two, and one of them again is one.
func TestReceiveSeparatesUnreadableMessages(t *testing.T) {
	t.Parallel()
	pool := database(t)
	r := receiver(t, pool, &effects{}, receive.Config{})
	unreadable := func(body, header string) receive.Message {
		return receive.Message{Message: consume.Message{Body: []byte(body), Headers: map[string]string{"x": header}}, Place: "test:1"}
	}
	for _, m := range []receive.Message{unreadable("one", ""), unreadable("two", ""), unreadable("one", ""), unreadable("one", "\xfe"), unreadable("one", "\xff")} {
		require.Equal(t, receive.Dead, one(t, r, m))
	}
	require.Equal(t, 4, kept(t, pool, "dead"))
}

// TestReceiveKeepsAnyKey: keys that PostgreSQL cannot store or index are kept apart and in order, and what is parked comes back
// as it was.
func TestReceiveKeepsAnyKey(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	var fails atomic.Bool
	fails.Store(true)
	e.set(func(context.Context, pgx.Tx, counted) error {
		if fails.Load() {
			return errors.New("not yet")
		}
		return nil
	})
	headers := map[string]string{"x": "\xff\x00"}
	r := receiver(t, pool, e, quick(receive.Config{Attempts: 1, MaxAttempts: 1000, Observer: &receive.Observer{Settled: func(s receive.Settled) {
		if s.Outcome == receive.Applied && !maps.Equal(headers, s.Event.Headers) {
			t.Errorf("headers of %s: %q", s.Place, s.Event.Headers)
		}
	}}}))
	long := strings.Repeat("key of many bytes, which do not compress: 0123456789abcdef", 200)
	keys := []string{"a?", "a\x00", "a\xff", "a\xfe", long + "a", long + "b"}
	var ms []receive.Message
	for n := 1; n <= 3; n++ {
		for i, key := range keys {
			m := message(fmt.Sprint(i), n)
			m.Key, m.Headers = key, headers
			ms = append(ms, m)
		}
	}
	outcomes, err := r.Receive(t.Context(), ms)
	require.NoError(t, err)
	require.NotContains(t, outcomes, receive.Applied)
	require.Equal(t, len(keys), pgtest.Count(t, pool, "SELECT count(DISTINCT key) FROM outbox.inbox_messages"))
	fails.Store(false)
	start(t, r)
	pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.inbox_messages")
	requireCounted(t, pool, 3, "0", "1", "2", "3", "4", "5")
}

// TestReceiveTakesAParkedKeyTogether: the messages of a key that waited are applied in few transactions, in order.
func TestReceiveTakesAParkedKeyTogether(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	e.set(func(context.Context, pgx.Tx, counted) error { return errors.New("not yet") })
	var begun atomic.Int64
	r := receiver(t, pool, e, receive.Config{Attempts: 1, BaseDelay: time.Nanosecond, PollInterval: 10 * time.Millisecond, Begin: func(context.Context, pgx.Tx) error {
		begun.Add(1)
		return nil
	}})
	const n = 80
	_, err := r.Receive(t.Context(), messages(n, "a"))
	require.NoError(t, err)
	// All are due, as after a replay of several processes: still only the first of the key may be begun with.
	pgtest.Execute(t, pool, "UPDATE outbox.inbox_messages SET next_attempt_at = statement_timestamp()")
	e.set(nil)
	begun.Store(0)
	start(t, r)
	pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.inbox_messages")
	requireCounted(t, pool, n, "a")
	require.LessOrEqual(t, begun.Load(), int64(3))
}

// TestReceiveSplitsAParkedBatch: a message that fails among those that waited does not keep back the ones before it, which are
// applied in one transaction.
func TestReceiveSplitsAParkedBatch(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	e.set(func(context.Context, pgx.Tx, counted) error { return errors.New("not yet") })
	r := receiver(t, pool, e, quick(receive.Config{Attempts: 1, MaxAttempts: 1000}))
	_, err := r.Receive(t.Context(), messages(10, "a"))
	require.NoError(t, err)
	var fifth atomic.Int64
	e.set(func(_ context.Context, _ pgx.Tx, p counted) error {
		switch p.N {
		case 5:
			fifth.Add(1)
		case 6:
			return errors.New("not yet")
		}
		return nil
	})
	start(t, r)
	pgtest.Settles(t, pool, 5, "SELECT count(*) FROM effects")
	require.Equal(t, int64(2), fifth.Load(), "once with the sixth, and once without it")
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.inbox_messages WHERE attempts > 2")
	require.Equal(t, 4, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.inbox_messages WHERE attempts = 0"), "only the one that fails is charged")
	e.set(nil)
	pgtest.Settles(t, pool, 10, "SELECT count(*) FROM effects")
	requireCounted(t, pool, 10, "a")
}

// TestReceiveLimitsItsLines: many dead letters are few lines of the log, and strands that wait for one thing say so once.
func TestReceiveLimitsItsLines(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e, log := &effects{}, runtimetest.NewLogSpy()
	e.set(func(context.Context, pgx.Tx, counted) error { return consume.Permanent(errors.New("never")) })
	r := receiver(t, pool, e, receive.Config{Logger: log.Logger(), Concurrency: 4})
	_, err := r.Receive(t.Context(), messages(100, "a", "b"))
	require.NoError(t, err)
	require.Equal(t, 200, kept(t, pool, "dead"))
	require.LessOrEqual(t, strings.Count(log.String(), "message is a dead letter"), 100, "20 per 10 s")

	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	var mu sync.Mutex
	tries := make(map[string]int)
	e.set(func(_ context.Context, _ pgx.Tx, p counted) error {
		mu.Lock()
		defer mu.Unlock()
		tries[p.Key]++
		waiting := 0
		for _, n := range tries {
			if n > 1 {
				waiting++
			}
		}
		if waiting < 3 {
			return consume.Unavailable(errors.New("away"))
		}
		return nil
	})
	_, err = r.Receive(t.Context(), messages(1, keys...))
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(log.String(), "messages wait: "), log.String())
}

// TestReceiveSurvivesItsObserver: a panic of the observer changes nothing.
func TestReceiveSurvivesItsObserver(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	e.set(raise("22012", 1))
	r := receiver(t, pool, e, receive.Config{Observer: &receive.Observer{
		Settled: func(receive.Settled) { panic("settled") }, Failed: func(receive.Failed) { panic("failed") }, Waiting: func(error) { panic("waiting") },
	}})
	require.Equal(t, receive.Applied, one(t, r, message("a", 1)))
}

// TestReceiveCountsDeadLettersInARow: an applied message between dead letters starts the count again.
func TestReceiveCountsDeadLettersInARow(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	e.set(func(_ context.Context, _ pgx.Tx, p counted) error {
		if p.N%3 != 0 {
			return consume.Permanent(errors.New("never"))
		}
		return nil
	})
	_, err := receiver(t, pool, e, receive.Config{MaxDeadInARow: 3, BatchSize: 1}).Receive(t.Context(), messages(12, "a"))
	require.NoError(t, err)
	require.Equal(t, 8, kept(t, pool, "dead"))
}

// TestReceiveIgnoresOnlyUnknownTopics: a message that is not an event at all is kept, whatever IgnoreUnknown says.
func TestReceiveIgnoresOnlyUnknownTopics(t *testing.T) {
	t.Parallel()
	pool := database(t)
	r := receiver(t, pool, &effects{}, receive.Config{IgnoreUnknown: true})
	invalid := message("a", 1)
	invalid.Body = []byte("{")
	for i, m := range []receive.Message{{Message: consume.Message{Body: []byte("hello")}, Place: "test:1"}, invalid} {
		require.Equal(t, receive.Dead, one(t, r, m), i)
	}
}

// TestReceiveEndsAHangingEffect: an effect that does not end is given up a ShutdownTimeout after the stop.
func TestReceiveEndsAHangingEffect(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	ctx, cancel := context.WithCancel(t.Context())
	e.set(func(ctx context.Context, _ pgx.Tx, _ counted) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	})
	r := receiver(t, pool, e, receive.Config{ShutdownTimeout: 50 * time.Millisecond, EffectTimeout: never})
	ended := make(chan error, 1)
	go func() {
		_, err := r.Receive(ctx, []receive.Message{message("a", 1)})
		ended <- err
	}()
	require.ErrorIs(t, pgtest.Receive(t, ended, "the end of Receive"), context.Canceled)
}

// TestReceivePrunes: Run deletes old records of the inbox.
func TestReceivePrunes(t *testing.T) {
	t.Parallel()
	pool := database(t)
	r := receiver(t, pool, &effects{}, receive.Config{PruneInterval: 10 * time.Millisecond})
	require.Equal(t, receive.Applied, one(t, r, message("a", 1)))
	pgtest.Execute(t, pool, "UPDATE outbox.processed_events SET processed_at = processed_at - interval '1000 days'")
	start(t, r)
	pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.processed_events")
}

// TestReceiveBoundsConcurrency: no more than Concurrency transactions run, over all calls of Receive.
func TestReceiveBoundsConcurrency(t *testing.T) {
	t.Parallel()
	pool := database(t)
	e := &effects{}
	var running, most atomic.Int64
	e.set(func(context.Context, pgx.Tx, counted) error {
		n := running.Add(1)
		defer running.Add(-1)
		for before := most.Load(); n > before && !most.CompareAndSwap(before, n); before = most.Load() {
		}
		time.Sleep(5 * time.Millisecond) // the time that an effect takes: the others overlap with it
		return nil
	})
	r := receiver(t, pool, e, receive.Config{Concurrency: 2})
	var calls sync.WaitGroup
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		calls.Go(func() {
			_, err := r.Receive(t.Context(), messages(5, key))
			pgtest.Check(t, err)
		})
	}
	calls.Wait()
	require.LessOrEqual(t, most.Load(), int64(2))
}
