package queue_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// TestNoTenantWaitsBehindAnothersBurst: with fairness by tenant, the events of another tenant are handled while the burst of
// the first has hardly begun, and the first tenant's batches stay full. Without it they wait for it. Handlers take time, so
// that the burst is not over before the dispatcher looks for other tenants, which it does every 50 ms.
func TestNoTenantWaitsBehindAnothersBurst(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const burst, few = 3000, 10
	for _, c := range []struct {
		fairness  outbox.Fairness
		published bool
	}{{outbox.FairnessTenant, false}, {"", false}, {outbox.FairnessTenant, true}} {
		fairness := c.fairness
		t.Run(fmt.Sprintf("fairness %q, published %t", fairness, c.published), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			topic := runtimetest.Altered(runtimetest.JobTopic("burst"), func(s *outbox.TopicSpec) { s.Fairness = fairness })
			noisy := uuid.New()
			quiet := uuid.New()
			enqueue := func(tenant uuid.UUID, n int) {
				jobs := make([]runtimetest.Job, n)
				for i := range jobs {
					jobs[i] = runtimetest.Job{TenantID: tenant, N: int64(i)}
				}
				pgtest.InTx(t, pool, func(tx pgx.Tx) {
					_, err := topic.EnqueueMany(t.Context(), tx, jobs)
					require.NoError(t, err)
				})
			}
			enqueue(noisy, burst)
			var handled, served atomic.Int64
			began, enqueued, done := make(chan struct{}), make(chan struct{}), make(chan int64, 1)
			cfg := runtimetest.QuickConfig()
			cfg.BatchSize, cfg.Concurrency = 50, 5
			handle := func(tenant uuid.UUID) {
				n := handled.Add(1)
				if n == 100 {
					close(began)
				}
				if n >= 100 {
					<-enqueued
				}
				if tenant == quiet && served.Add(1) == few {
					done <- n
				}
			}
			handler := runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
				<-time.After(2 * time.Millisecond)
				handle(d.TenantID.UUID)
				return nil
			})
			if c.published {
				handler = queue.Publish(topic, publish.Publication{Broker: "hook", Destination: "all"})
				cfg.Publishers = map[string]publish.Publisher{"hook": eachPublished(handle)}
			}
			stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, handler))
			pgtest.Receive(t, began, "the burst to be under way")
			enqueue(quiet, few)
			close(enqueued)
			if at := pgtest.Receive(t, done, "the other tenant's events"); fairness == outbox.FairnessTenant {
				require.Less(t, at, int64(burst/4))
			} else {
				require.Greater(t, at, int64(burst*3/4)) // not all: a claim passes over rows that another statement has locked
			}
			pgtest.Settles(t, pool, burst+few, runtimetest.DeliveredSQL)
			require.NoError(t, stop())
		})
	}
}

// eachPublished is a publisher that is called with the tenant of each event.
type eachPublished func(tenant uuid.UUID)

func (f eachPublished) Publish(_ context.Context, events []publish.Outgoing) []error {
	<-time.After(20 * time.Millisecond)
	for _, e := range events {
		f(e.TenantID.UUID)
	}
	return make([]error, len(events))
}

// TestNoTopicWaitsBehindAnother: topics are in lanes of their own anyway.
func TestNoTopicWaitsBehindAnother(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const burst = 3000
	pool := pgtest.Database(t)
	noisy, quiet := runtimetest.JobTopic("noisy"), runtimetest.JobTopic("quiet")
	runtimetest.EnqueueJobs(t, pool, noisy, runtimetest.NumberedJobs(burst)...)
	runtimetest.EnqueueJobs(t, pool, quiet, runtimetest.NumberedJobs(1)...)
	var handled atomic.Int64
	at := make(chan int64, 1)
	cfg := runtimetest.QuickConfig()
	cfg.BatchSize = 50
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg,
		runtimetest.OnJob(noisy, func(context.Context, outbox.Delivery[runtimetest.Job]) error { handled.Add(1); return nil }),
		runtimetest.OnJob(quiet, func(context.Context, outbox.Delivery[runtimetest.Job]) error { at <- handled.Load(); return nil })))
	require.Less(t, pgtest.Receive(t, at, "the other topic's event"), int64(burst/4))
	pgtest.Settles(t, pool, burst+1, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
}

// TestClaimTakesFromEveryLane: a claim takes as much from each lane as from the others, what a lane does not use goes to the
// others, the oldest of a lane come first, and the result is in due order.
func TestClaimTakesFromEveryLane(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	s := runtimetest.NewStore(t, pool)
	have := map[string]int{"ping": 400, "pong": 30, "pang": 2, "pung": 400}
	for topic, n := range have {
		ms := make([]outbox.Message, n)
		for i := range ms {
			ms[i] = outbox.Message{Namespace: runtimetest.Namespace, Topic: topic, Payload: fmt.Appendf(nil, "%d", i), PartitionKey: fmt.Sprintf("%06d", i)}
		}
		runtimetest.EnqueueAll(t, pool, ms...)
	}
	pgtest.Execute(t, pool, `UPDATE testing.events SET next_attempt_at = now() - interval '1 h' + partition_key::int * interval '1 ms'`)
	next := map[string]int{}
	for _, want := range []map[string]int{
		{"ping": 49, "pong": 49, "pang": 2, "pung": 49}, // pong and pang have less
		{"ping": 50, "pung": 50},
	} {
		claimed, err := s.Claim(t.Context(), queue.ClaimConfig{BatchSize: 100, LeaseDuration: runtimetest.LongLease})
		require.NoError(t, err)
		got := map[string]int{}
		for _, c := range claimed {
			require.Equal(t, fmt.Sprintf("%06d", next[c.Topic]), c.PartitionKey, "oldest first")
			next[c.Topic]++
			got[c.Topic]++
		}
		require.Greater(t, len(claimed), 90, "what a lane does not use goes to the others")
		for topic, n := range want {
			require.GreaterOrEqual(t, got[topic], min(n, have[topic], 30)-5, "%s of %v", topic, got)
			have[topic] -= got[topic]
		}
		due := make([]time.Time, len(claimed))
		for i, c := range claimed {
			due[i] = pgtest.Value[time.Time](t, pool, "SELECT next_attempt_at FROM outbox.queue WHERE id = $1", c.ID)
		}
		require.True(t, slices.IsSortedFunc(due, time.Time.Compare), "in due order")
	}
}

// queueForeign adds n due events of a topic that nobody handles, in the lane of topic.
func queueForeign(t testing.TB, pool *pgxpool.Pool, topic string, n int) {
	t.Helper()
	pgtest.Execute(t, pool, `WITH e AS (INSERT INTO outbox.events (namespace, topic, payload) SELECT 'jobs', 'foreign', '1' FROM generate_series(1, $1) RETURNING id)
		INSERT INTO outbox.queue (id, namespace, topic, lane, next_attempt_at) SELECT id, 'jobs', 'foreign', $2, now() - interval '1 h' FROM e`, n, topiclane.Of(topic))
}

// TestClaimsPassForeignEventsOnce: a dispatcher walks past events that it does not handle in pieces, and claims that follow do
// not meet them again.
func TestClaimsPassForeignEventsOnce(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const foreign = 20_000
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("own")
	queueForeign(t, pool, "own", foreign)
	handled := make(chan int64, 10)
	cfg := runtimetest.QuickConfig()
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		handled <- d.Payload.N
		return nil
	})))
	for n := range int64(5) {
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.Job{TenantID: uuid.New(), N: n})
		require.Equal(t, n, pgtest.Receive(t, handled, "its own event"))
	}
	require.NoError(t, stop())
	require.Equal(t, foreign, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue WHERE attempts = 0 AND locked_by IS NULL"), "foreign events stay as they are")
}

// TestStatementTimeoutDoesNotStopClaims: with a timeout that a walk past everything would exceed, everything of one's own is
// delivered: by a Store and by a dispatcher.
func TestStatementTimeoutDoesNotStopClaims(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const foreign, own = 120_000, 300
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("own")
	queueForeign(t, pool, "own", foreign)
	config := pool.Config().Copy()
	config.ConnConfig.RuntimeParams["statement_timeout"] = "100" // a walk past all takes twice as long
	hasty, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer hasty.Close()
	for i, who := range []string{"store", "run"} { // one after the other, because to write so many foreign events takes seconds
		t.Run(who, func(t *testing.T) {
			runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(own)...)
			if who == "store" {
				s, err := queue.NewStore(hasty, queue.StoreConfig{Namespace: "jobs"})
				require.NoError(t, err)
				cursor := new(queue.Cursor)
				for total := 0; total < own; {
					claimed, err := s.Claim(t.Context(), queue.ClaimConfig{Topics: []string{"own"}, Cursor: cursor})
					if err != nil {
						require.ErrorContains(t, err, "57014") // of a busy machine: the next piece is shorter; a timeout that fires late is told as a request
						continue
					}
					total += len(claimed)
					if len(claimed) > 0 {
						_, err = s.Ack(t.Context(), claimed...)
						require.NoError(t, err)
					}
				}
				return
			}
			var mu sync.Mutex
			seen := map[int64]int{}
			cfg := runtimetest.QuickConfig()
			d := runtimetest.Dispatcher(t, hasty, cfg, runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
				mu.Lock()
				defer mu.Unlock()
				seen[d.Payload.N]++
				return nil
			}))
			stop := runtimetest.StartDispatcher(t, d)
			pgtest.Settles(t, pool, own*(i+1), runtimetest.DeliveredSQL)
			require.NoError(t, stop())
		})
	}
}

// TestCursorBoundsAClaim: a claim with a cursor walks one piece, and the next claim continues where it stopped.
func TestCursorBoundsAClaim(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const foreign, own = 8000, 30
	pool := pgtest.Database(t)
	queueForeign(t, pool, "own", foreign)
	runtimetest.EnqueueJobs(t, pool, runtimetest.JobTopic("own"), runtimetest.NumberedJobs(own)...)
	s, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "jobs"})
	require.NoError(t, err)
	cfg := queue.ClaimConfig{Topics: []string{"own"}, BatchSize: 20, LeaseDuration: runtimetest.LongLease, Cursor: new(queue.Cursor)}
	empty, total := 0, 0
	for !cfg.Cursor.Done() {
		claimed, err := s.Claim(t.Context(), cfg)
		require.NoError(t, err)
		if total += len(claimed); len(claimed) == 0 {
			empty++
		}
	}
	require.Equal(t, own, total)
	require.Greater(t, empty, 1, "it stops although there is more")
	cfg.Cursor = nil
	runtimetest.EnqueueJobs(t, pool, runtimetest.JobTopic("own"), runtimetest.NumberedJobs(1)...)
	claimed, err := s.Claim(t.Context(), cfg)
	require.NoError(t, err)
	require.Len(t, claimed, 1, "without a cursor a claim walks until it finds something")
}

// TestLateCommitIsFoundWhileBusy: an event whose transaction was open for longer than the front trails is found while the
// dispatcher is busy with others, and after it has gone to sleep.
func TestLateCommitIsFoundWhileBusy(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, busy := range []bool{true, false} {
		t.Run(fmt.Sprintf("busy %v", busy), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			topic := runtimetest.JobTopic("own")
			tx := pgtest.Begin(t, pool, pgx.TxOptions{})
			_, err := topic.Enqueue(t.Context(), tx, runtimetest.Job{TenantID: uuid.New(), N: -1})
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), "UPDATE outbox.queue SET next_attempt_at = now() - interval '1 min'") // as if it had taken long
			require.NoError(t, err)
			late, others := make(chan struct{}), make(chan struct{}, 1000)
			cfg := queue.Config{PollInterval: runtimetest.Rarely, MaxPollInterval: runtimetest.Rarely, LeaseDuration: 3 * runtimetest.Rarely, Logger: runtimetest.DiscardLogger()}
			stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
				if d.Payload.N == -1 {
					close(late)
				} else {
					others <- struct{}{}
				}
				return nil
			})))
			var producer sync.WaitGroup
			ctx, cancel := context.WithCancel(t.Context())
			enqueue := func() bool {
				err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					_, err := topic.Enqueue(ctx, tx, runtimetest.Job{TenantID: uuid.New(), N: 1})
					return err
				})
				return err == nil
			}
			require.True(t, enqueue())
			pgtest.Receive(t, others, "the first event")
			if busy {
				producer.Go(func() {
					for enqueue() {
						select {
						case <-others:
						case <-ctx.Done():
						}
					}
				})
			}
			require.NoError(t, tx.Commit(t.Context()))
			pgtest.Receive(t, late, "the late event")
			cancel()
			producer.Wait()
			require.NoError(t, stop())
		})
	}
}

// TestCursorGoesOnAfterTheEnd: a caller that claims again and again with one Cursor gets what was enqueued after it had come to
// the end, and what waited at a limit then.
func TestCursorGoesOnAfterTheEnd(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := runtimetest.LimitedJobs("limited", outbox.Limit{Per: "{secret}", Concurrency: 1})
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, nil)))
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.limits")
	require.NoError(t, stop())
	s, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "jobs"})
	require.NoError(t, err)
	cursor := new(queue.Cursor)
	claim := func() []queue.Claimed {
		t.Helper()
		claimed, err := s.Claim(t.Context(), queue.ClaimConfig{Topics: []string{"limited"}, Cursor: cursor})
		require.NoError(t, err)
		return claimed
	}
	next := func() (found []queue.Claimed) {
		t.Helper()
		pgtest.Eventually(t, func() bool {
			found = claim()
			return len(found) > 0
		})
		return found
	}
	for first := true; first || !cursor.Done(); first = false {
		require.Empty(t, claim())
	}
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.Job{TenantID: uuid.New(), N: 1, Secret: "a"}, runtimetest.Job{TenantID: uuid.New(), N: 2, Secret: "a"})
	first := next()
	require.Len(t, first, 1)
	for range 10 {
		require.Empty(t, claim(), "the limit is reached")
	}
	_, err = s.Ack(t.Context(), first...)
	require.NoError(t, err)
	second := next()
	require.Len(t, second, 1)
	require.NotEqual(t, first[0].ID, second[0].ID)
}

// TestCursorComesToAllTurns: claims with a cursor do not end before all turns have been claimed, also when they find more of
// them than a claim takes.
func TestCursorComesToAllTurns(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := runtimetest.Altered(runtimetest.JobTopic("fair"), func(s *outbox.TopicSpec) { s.Fairness = outbox.FairnessTenant })
	for i := range 10 {
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.Job{TenantID: uuid.UUID{byte(i + 1)}})
	}
	s, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "jobs"})
	require.NoError(t, err)
	n, cursor := 0, new(queue.Cursor)
	for !cursor.Done() {
		claimed, err := s.Claim(t.Context(), queue.ClaimConfig{Topics: []string{"fair"}, BatchSize: 3, Cursor: cursor})
		require.NoError(t, err)
		n += len(claimed)
	}
	require.Equal(t, 10, n)
}
