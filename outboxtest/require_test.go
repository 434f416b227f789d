package outboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/payload"
	"github.com/outboxgen/outboxgen/queue"
)

type note struct {
	ID     string `json:"id"`
	Secret string `json:"secret"`
}

var noteTopic = outbox.NewTopic[note](outbox.TopicSpec{Namespace: "notes", Name: "written", Version: 1, Keys: func(v any) outbox.Keys {
	n := v.(*note)
	return outbox.Keys{Dedupe: eventkey.NewKey(eventkey.StringPart("id", n.ID))}
}})

type noteHandlers interface {
	HandleWritten(ctx context.Context, d outbox.Delivery[note]) error
}

type noteFunc func(context.Context, outbox.Delivery[note]) error

func (f noteFunc) HandleWritten(ctx context.Context, d outbox.Delivery[note]) error { return f(ctx, d) }

// fakeT is a test that may fail without failing this one.
type fakeT struct {
	testing.TB
	message string
}

func (f *fakeT) Fatalf(format string, args ...any) {
	f.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (f *fakeT) Fatal(args ...any) { f.Fatalf("%s", fmt.Sprint(args...)) }

// failure runs check in its own goroutine, as the testing package runs a test, and returns the message of its failure.
func failure(t *testing.T, check func(testing.TB)) string {
	t.Helper()
	fake := &fakeT{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		check(fake)
	}()
	<-done
	return fake.message
}

func is(id string) func(note) bool { return func(n note) bool { return n.ID == id } }

func TestRequireEnqueued(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	outboxtest.RequireNotEnqueued(t, tx, noteTopic, nil)
	require.Equal(t, "no event of notes/written matches; there are none",
		failure(t, func(t testing.TB) { outboxtest.RequireEnqueued(t, tx, noteTopic, nil) }))

	receipt, err := noteTopic.Enqueue(t.Context(), tx, note{ID: "a", Secret: "hush"})
	require.NoError(t, err)
	require.Equal(t, note{ID: "a", Secret: "hush"}, outboxtest.RequireEnqueued(t, tx, noteTopic, is("a")))
	require.Equal(t, "a", outboxtest.RequireEnqueued(t, tx, noteTopic, nil).ID)
	outboxtest.RequireNotEnqueued(t, tx, noteTopic, is("b"))
	outboxtest.RequireNotEnqueued(t, pool, noteTopic, nil) // not committed

	list := "1:\n\t" + receipt.ID.String() + ` pending key "a"`
	require.Equal(t, "no event of notes/written matches; there are "+list,
		failure(t, func(t testing.TB) { outboxtest.RequireEnqueued(t, tx, noteTopic, is("b")) }))
	require.Equal(t, "an event of notes/written matches; the last of these: "+list,
		failure(t, func(t testing.TB) { outboxtest.RequireNotEnqueued(t, tx, noteTopic, is("a")) }))

	spec := noteTopic.Untyped().Spec()
	spec.Schema = "nowhere"
	elsewhere := outbox.NewTopic[note](spec)
	require.Contains(t, failure(t, func(t testing.TB) { outboxtest.RequireEnqueued(t, pool, elsewhere, nil) }),
		"read events of notes/written: ")
}

// TestDrainGivesBatches: also in the goroutine of the test, and without a wait. One that fails is called again in halves.
func TestDrainGivesBatches(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	spec := noteTopic.Untyped().Spec()
	spec.Batch = outbox.Batch{Size: 10, Wait: time.Hour}
	topic := outbox.NewTopic[note](spec)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := topic.EnqueueMany(t.Context(), tx, []note{{ID: "good"}, {ID: "bad"}, {ID: "better"}})
		return err
	}))
	var calls [][]string // without a lock: the race detector would report another goroutine
	d, err := queue.NewDispatcher(pool, queue.Config{},
		queue.HandleBatch(topic, t, func(_ context.Context, ds []outbox.Delivery[note]) error {
			var call []string
			for _, d := range ds {
				call = append(call, d.Payload.ID)
			}
			if calls = append(calls, call); slices.Contains(call, "bad") {
				return outbox.Permanent(errors.New("never"))
			}
			return nil
		}))
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 2, Dead: 1}, outboxtest.Drain(t, d))
	require.Equal(t, [][]string{{"good", "bad", "better"}, {"good", "bad"}, {"good"}, {"bad"}, {"better"}}, calls)
}

func TestDrainRunsInTheGoroutineOfTheTest(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := noteTopic.EnqueueMany(t.Context(), tx, []note{{ID: "good"}, {ID: "bad"}, {ID: "hopeless"}})
		return err
	}))
	var order []string // without a lock: the race detector would report another goroutine
	d, err := queue.NewDispatcher(pool, queue.Config{},
		queue.Handle(noteTopic, noteHandlers(noteFunc(func(_ context.Context, d outbox.Delivery[note]) error {
			order = append(order, d.Payload.ID)
			switch d.Payload.ID {
			case "bad":
				return outbox.RetryAfter(1<<40, errors.New("later"))
			case "hopeless":
				return outbox.Permanent(errors.New("never"))
			}
			return nil
		})), noteHandlers(noteFunc(func(_ context.Context, d outbox.Delivery[note]) error {
			order = append(order, d.Payload.ID)
			switch d.Payload.ID {
			case "bad":
				return outbox.RetryAfter(1<<40, errors.New("later"))
			case "hopeless":
				return outbox.Permanent(errors.New("never"))
			}
			return nil
		})).HandleWritten))
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 1, Retried: 1, Dead: 1}, outboxtest.Drain(t, d))
	require.Equal(t, []string{"good", "bad", "hopeless"}, order)
	require.Equal(t, queue.Report{}, outboxtest.Drain(t, d))

	// A handler that fails the test ends it immediately, as FailNow does anywhere in a test.
	failing, err := queue.NewDispatcher(pool, queue.Config{WorkerID: uuid.New()},
		queue.Handle(noteTopic, noteHandlers(noteFunc(func(context.Context, outbox.Delivery[note]) error {
			runtime.Goexit() // what FailNow does
			return nil
		})), noteHandlers(noteFunc(func(context.Context, outbox.Delivery[note]) error {
			runtime.Goexit() // what FailNow does
			return nil
		})).HandleWritten))
	require.NoError(t, err)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := noteTopic.Enqueue(t.Context(), tx, note{ID: "last"})
		return err
	}))
	returned := false
	require.Empty(t, failure(t, func(t testing.TB) {
		outboxtest.Drain(t, failing)
		returned = true
	}))
	require.False(t, returned)

	pool.Close()
	require.Contains(t, failure(t, func(t testing.TB) { outboxtest.Drain(t, d) }), "drain: ")
}

// TestRequireEnqueuedReadsOlderVersions: RequireEnqueued gets what a handler would: payloads of older versions pass through
// their upcasters, and what no handler would get never matches.
func TestRequireEnqueuedReadsOlderVersions(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	spec := outbox.TopicSpec{Namespace: "shop", Name: "paid", Version: 1, Strict: true}
	for _, log := range []bool{false, true} {
		spec := spec
		if spec.Log = log; log {
			spec.Name = "paid_log"
		}
		newer, current := spec, spec
		newer.Version, current.Version = 3, 2
		current.History = []payload.Upcaster{payload.Upcast(1, func(old paidV1) (paid, error) { return paid{Amount: old.Cents}, nil })}
		topic := outbox.NewTopic[paid](current)
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, incomplete := outbox.NewTopic[note](current).Untyped().Enqueue(t.Context(), tx, note{ID: "a"})
			_, later := outbox.NewTopic[paid](newer).Untyped().Enqueue(t.Context(), tx, paid{Amount: 8})
			return errors.Join(incomplete, later)
		}))
		require.Regexp(t, `^no event of shop/paid\w* matches; there are 2:\n\t\S+ .* \(payload does not decode\)\n\t\S+ .* \(payload has version 3, the topic knows 2\)$`,
			failure(t, func(t testing.TB) { outboxtest.RequireEnqueued(t, pool, topic, nil) }))
		outboxtest.RequireNotEnqueued(t, pool, topic, nil)
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := outbox.NewTopic[paidV1](spec).Untyped().Enqueue(t.Context(), tx, paidV1{Cents: 7})
			return err
		}))
		require.Equal(t, paid{Amount: 7}, outboxtest.RequireEnqueued(t, pool, topic, func(p paid) bool { return p.Amount == 7 }))
	}
}
