package events_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/threads/events"
	"github.com/outboxgen/outboxgen/examples/threads/thread"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
)

// clientsChannel are clients that take messages until the channel is full, and then fail.
type clientsChannel chan events.MessageCreated

func (c clientsChannel) Push(_ context.Context, m events.MessageCreated) error {
	select {
	case c <- m:
		return nil
	default:
		return errors.New("clients are full")
	}
}

func TestBothListenersSeeEveryMessage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	one, two := f.thread(), f.thread()
	heard, asked := newBroadcaster(nil), newAsker(nil)
	broadcast, companion := f.attached(heard, listener.Config{}), f.companion(asked, listener.Config{})
	f.post(one, "a", "b")
	f.post(two, "c")
	f.post(one, "d")

	require.Equal(t, listener.Report{Delivered: 4}, outboxtest.Drain(t, broadcast))
	require.Equal(t, listener.Report{Delivered: 4}, outboxtest.Drain(t, companion))
	for _, r := range []*record{heard.record, asked.record} {
		require.Equal(t, []string{"a", "b", "d"}, r.handled(one))
		require.Equal(t, []string{"c"}, r.handled(two))
	}
	require.Equal(t, 4, f.jobs())
	require.Zero(t, outboxtest.Drain(t, broadcast), "nothing is delivered again")
	require.Zero(t, outboxtest.Drain(t, companion))
}

// TestCompanionAsksForUsersOnly also posts as the companion, which must not answer itself.
func TestCompanionAsksForUsersOnly(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.thread()
	question := f.draft(id, "Does the ferry run today?")
	require.NoError(t, f.postDraft(question))
	reply := f.draft(id, "It does.")
	reply.Role, reply.Author = events.RoleCompanion, "companion"
	require.NoError(t, f.postDraft(reply))

	companion := f.companion(&events.CompanionHandler{}, listener.Config{})
	require.Equal(t, listener.Report{Delivered: 2}, outboxtest.Drain(t, companion))
	require.Equal(t, 1, f.jobs())
	outboxtest.RequireEnqueued(t, f.pool, events.ReplyRequestedTopic, func(r events.ReplyRequested) bool {
		return r == events.ReplyRequested{TenantID: f.tenant, ThreadID: id, MessageID: question.ID}
	})
}

func TestHandlerPushesToTheClients(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	clients := make(clientsChannel, 1)
	broadcast := f.attached(&events.BroadcastHandler{Clients: clients}, listener.Config{})
	id := f.thread()
	f.post(id, "hello")
	require.Equal(t, listener.Report{Delivered: 1}, outboxtest.Drain(t, broadcast))
	require.Equal(t, "hello", (<-clients).Text)

	clients <- events.MessageCreated{} // it is full now
	f.post(id, "hello again")
	report := outboxtest.Drain(t, broadcast) // on a slow machine the next attempt becomes due meanwhile
	require.Positive(t, report.Retried)
	require.Zero(t, report.Delivered)
}

func TestRolledBackMessageIsSeenByNobody(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.thread()
	heard, asked := newBroadcaster(nil), newAsker(nil)
	broadcast, companion := f.attached(heard, listener.Config{}), f.companion(asked, listener.Config{})
	tx, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	_, created, err := thread.Post(t.Context(), tx, f.draft(id, "lost"))
	require.NoError(t, err)
	require.True(t, created)
	require.Zero(t, outboxtest.Drain(t, broadcast), "it is not committed yet")
	require.NoError(t, tx.Rollback(t.Context()))

	f.post(id, "kept")
	require.Equal(t, listener.Report{Delivered: 1}, outboxtest.Drain(t, broadcast))
	require.Equal(t, listener.Report{Delivered: 1}, outboxtest.Drain(t, companion))
	require.Equal(t, []string{"kept"}, heard.handled(id))
	require.Equal(t, []string{"kept"}, asked.handled(id))
	require.Equal(t, 1, f.jobs())
}

// TestOneListenerFailsAndTheOtherGoesOn lets broadcast fail on everything while companion works. When broadcast works
// again, it gets everything in order.
func TestOneListenerFailsAndTheOtherGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	threads := []uuid.UUID{f.thread(), f.thread(), f.thread()}
	trouble := make(chan struct{})
	heard := newBroadcaster(func(outbox.Delivery[events.MessageCreated]) error {
		select {
		case <-trouble:
			return nil
		default:
			return errors.New("no client can be reached")
		}
	})
	asked := newAsker(nil)
	broadcast := f.attached(heard, listener.Config{MaxAttempts: 1000})
	companion := f.companion(asked, listener.Config{})
	f.start(broadcast)
	f.start(companion)

	const each = 10
	want := make([]string, each)
	for n := range want {
		want[n] = fmt.Sprint(n + 1)
		for _, id := range threads {
			f.post(id, want[n])
		}
	}
	asked.await(t, func(got []delivery) bool { return len(got) == each*len(threads) })
	heard.await(t, func(got []delivery) bool { return len(got) > 0 })
	for _, id := range threads {
		require.Equal(t, want, asked.handled(id))
		require.Empty(t, heard.handled(id))
	}

	close(trouble)
	got := heard.await(t, func(got []delivery) bool {
		n := 0
		for _, id := range threads {
			n += len(handled(got, id))
		}
		return n == each*len(threads)
	})
	for _, id := range threads {
		require.Equal(t, want, handled(got, id))
	}
	require.Zero(t, f.count("SELECT count(*) FROM outbox.dead_letters"))
}

// TestOrderInAThreadUnderConcurrentPosters posts concurrently in few threads while both listeners run, broadcast with eight
// concurrent handlers.
func TestOrderInAThreadUnderConcurrentPosters(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	threads := []uuid.UUID{f.thread(), f.thread(), f.thread()}
	heard, asked := newBroadcaster(func(outbox.Delivery[events.MessageCreated]) error {
		_, err := f.pool.Exec(t.Context(), "SELECT") // takes long enough for the next message to overtake, if it could
		return err
	}), newAsker(nil)
	f.start(f.attached(heard, listener.Config{BatchSize: 7}))
	f.start(f.companion(asked, listener.Config{BatchSize: 5}))

	const posters, each = 6, 12
	var busy sync.WaitGroup
	errs := make([]error, posters)
	for i := range posters {
		busy.Go(func() {
			for n := range each {
				if errs[i] = f.postOrRollBack(threads[(i+n)%len(threads)], n%4 == 3); errs[i] != nil {
					return
				}
			}
		})
	}
	busy.Wait()
	require.NoError(t, errors.Join(errs...))

	const kept = posters * each * 3 / 4
	for _, r := range []*record{heard.record, asked.record} {
		got := r.await(t, func(got []delivery) bool { return len(got) >= kept })
		require.Len(t, got, kept)
		last := map[uuid.UUID]int64{}
		for _, d := range got {
			require.Equal(t, last[d.Payload.ThreadID]+1, d.Payload.Number)
			last[d.Payload.ThreadID]++
		}
	}
}

// TestThreadsAreServedAtOnce makes the handlers of two threads wait for each other.
func TestThreadsAreServedAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	one, two := f.thread(), f.thread()
	meet := map[uuid.UUID]chan struct{}{one: make(chan struct{}), two: make(chan struct{})}
	heard := newBroadcaster(func(d outbox.Delivery[events.MessageCreated]) error {
		close(meet[d.Payload.ThreadID])
		for _, met := range meet {
			select {
			case <-met:
			case <-time.After(patience):
				return outbox.Permanent(errors.New("nobody came"))
			}
		}
		return nil
	})
	broadcast := f.attached(heard, listener.Config{})
	f.post(one, "hello")
	f.post(two, "hello")
	report, err := broadcast.Drain(t.Context()) // not outboxtest.Drain, which runs one handler at a time
	require.NoError(t, err)
	require.Equal(t, listener.Report{Delivered: 2}, report)
}

var errChangedMind = errors.New("changed my mind")

// postOrRollBack posts a message, and rolls back if rollBack is set.
func (f *fixture) postOrRollBack(id uuid.UUID, rollBack bool) error {
	err := pgx.BeginFunc(f.t.Context(), f.pool, func(tx pgx.Tx) error {
		_, _, err := thread.Post(f.t.Context(), tx, f.draft(id, "hello"))
		if err == nil && rollBack {
			err = errChangedMind
		}
		return err
	})
	if errors.Is(err, errChangedMind) {
		return nil
	}
	return err
}
