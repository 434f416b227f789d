package queue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// Rows that do not fit together, because somebody has written or deleted some of them by hand.

const (
	strayLine   = "event is dead: its row was deleted from the table events by hand"
	unsettled   = "events were queued although they were final: somebody has written their rows by hand"
	goneDeadSQL = `SELECT count(*) FROM outbox.dead_letters WHERE id = ANY ($1) AND attempts = 1 AND payload = 'null'
		AND error = 'the event is gone from the table events: somebody has deleted its row by hand'`
)

// TestStrayBecomesADeadLetter: a row of the queue whose event is gone is made a dead letter once, however many of them
// stand in front of the other events, which are delivered with their first attempt.
func TestStrayBecomesADeadLetter(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	topic := runtimetest.JobTopic("one")
	ways := map[string]func(t *testing.T, pool *pgxpool.Pool, orphans, others int) string{
		"Claim": func(t *testing.T, pool *pgxpool.Pool, _, others int) string {
			s, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "jobs"})
			require.NoError(t, err)
			for range others {
				claimed, err := s.Claim(t.Context(), queue.ClaimConfig{BatchSize: 10, LeaseDuration: runtimetest.LongLease})
				require.NoError(t, err)
				_, err = s.Ack(t.Context(), claimed...)
				require.NoError(t, err)
			}
			claimed, err := s.Claim(t.Context(), queue.ClaimConfig{})
			require.NoError(t, err)
			require.Empty(t, claimed)
			return ""
		},
		"Cursor": func(t *testing.T, pool *pgxpool.Pool, _, _ int) string {
			s, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "jobs"})
			require.NoError(t, err)
			for c := new(queue.Cursor); !c.Done(); {
				claimed, err := s.Claim(t.Context(), queue.ClaimConfig{BatchSize: 10, LeaseDuration: runtimetest.LongLease, Cursor: c})
				require.NoError(t, err)
				_, err = s.Ack(t.Context(), claimed...)
				require.NoError(t, err)
			}
			return ""
		},
		"Drain": func(t *testing.T, pool *pgxpool.Pool, orphans, others int) string {
			log := runtimetest.NewLogSpy()
			cfg := runtimetest.QuickConfig()
			cfg.Logger, cfg.BatchSize = log.Logger(), 10
			report, err := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, runtimetest.Succeed)).Drain(t.Context())
			require.NoError(t, err)
			require.Equal(t, queue.Report{Delivered: others, Dead: orphans}, report)
			return log.String()
		},
		"Run": func(t *testing.T, pool *pgxpool.Pool, orphans, others int) string {
			log := runtimetest.NewLogSpy()
			cfg := runtimetest.SleeperConfig() // it does not wait for a poll
			cfg.Logger, cfg.BatchSize = log.Logger(), 10
			stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, runtimetest.Succeed)))
			pgtest.Settles(t, pool, others, runtimetest.DeliveredSQL)
			pgtest.Settles(t, pool, orphans, "SELECT count(*) FROM outbox.dead_letters")
			require.NoError(t, stop())
			return log.String()
		},
	}
	for name, way := range ways {
		for _, orphans := range []int{1, 35} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Database(t)
				front := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(2)...)
				gone := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(orphans)...)
				runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(3)...)
				if orphans > 1 {
					gone, front = append(gone, front...), nil
				}
				pgtest.Execute(t, pool, "DELETE FROM outbox.events WHERE id = ANY ($1)", gone)
				pgtest.Execute(t, pool, "UPDATE outbox.queue SET next_attempt_at = next_attempt_at - interval '1 h'") // all far behind the front
				log := way(t, pool, len(gone), 3+len(front))
				require.Equal(t, 3+len(front), pgtest.Count(t, pool, runtimetest.DeliveredSQL+" AND attempts = 1"))
				require.Equal(t, len(gone), pgtest.Count(t, pool, goneDeadSQL, gone))
				require.Equal(t, len(gone), pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
				require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue"))
				if log != "" && orphans == 1 {
					require.Equal(t, 1, strings.Count(log, strayLine))
					require.Contains(t, log, gone[0].String())
				}
			})
		}
	}
}

// TestQueuedAndFinalIsSettledOnce: an event that is queued although it is delivered or dead is handled once, and is no longer
// queued. If it ends in the state that it had, the old one is replaced, and the log says so once. Otherwise it has both,
// until each is pruned.
func TestQueuedAndFinalIsSettledOnce(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	topic := runtimetest.JobTopic("one")
	for was, final := range map[string]string{
		"delivered": "INSERT INTO outbox.delivered (id, attempts, namespace, topic) SELECT id, 3, namespace, topic FROM outbox.events WHERE id = $1",
		"dead": `INSERT INTO outbox.dead_letters (id, namespace, topic, version, payload, created_at, attempts, error)
			SELECT id, namespace, topic, version, payload, created_at, 3, 'by hand' FROM outbox.events WHERE id = $1`,
	} {
		for becomes, answer := range map[string]error{"delivered": nil, "dead": outbox.Permanent(errors.New("no"))} {
			for _, way := range []string{"Run", "Drain"} {
				t.Run(was+" becomes "+becomes+" by "+way, func(t *testing.T) {
					t.Parallel()
					pool := pgtest.Database(t)
					ids := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(5)...)
					pgtest.Execute(t, pool, final, ids[2])
					log := runtimetest.NewLogSpy()
					cfg := runtimetest.QuickConfig()
					cfg.Logger = log.Logger()
					calls := make(chan int64, 10)
					d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
						calls <- d.Payload.N
						if d.Payload.N == 2 {
							return answer
						}
						return nil
					}))
					if way == "Drain" {
						report, err := d.Drain(t.Context())
						require.NoError(t, err)
						require.Equal(t, 5, report.Delivered+report.Dead)
					} else {
						stop := runtimetest.StartDispatcher(t, d)
						pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.queue")
						require.NoError(t, stop())
					}
					require.Len(t, calls, 5)
					replaced := map[bool]int{true: 1}[was == becomes]
					table := map[string]string{"delivered": "delivered", "dead": "dead_letters"}[becomes]
					require.Equal(t, 1, pgtest.Value[int](t, pool, "SELECT attempts FROM outbox."+table+" WHERE id = $1", ids[2]))
					require.Equal(t, 6-replaced, pgtest.Count(t, pool, "SELECT (SELECT count(*) FROM outbox.delivered) + (SELECT count(*) FROM outbox.dead_letters)"))
					require.Equal(t, replaced, strings.Count(log.String(), unsettled))
				})
			}
		}
	}
}

// TestEventWithoutStateDisturbsNothing: nothing claims it, settles it or prunes it, and its dedupe key stays taken.
func TestEventWithoutStateDisturbsNothing(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	m := outbox.Message{Namespace: runtimetest.Namespace, Topic: "ping", DedupeKey: "k", Payload: []byte("1")}
	id := runtimetest.EnqueueAll(t, pool, m)[0].ID
	pgtest.Execute(t, pool, "DELETE FROM outbox.queue")
	pgtest.Execute(t, pool, "UPDATE outbox.events SET created_at = '2000-01-01'")
	require.Equal(t, outbox.Receipt{ID: id, Duplicate: true}, runtimetest.EnqueueAll(t, pool, m)[0])
	runtimetest.EnqueueN(t, pool, 2)
	s, err := queue.NewStore(pool, queue.StoreConfig{Namespace: runtimetest.Namespace, Retention: map[string]outbox.Retention{"ping": {Delivered: time.Nanosecond, Dead: time.Nanosecond}}})
	require.NoError(t, err)
	claimed := runtimetest.ClaimN(t, s, 2)
	outcomes, err := s.Ack(t.Context(), claimed...)
	require.NoError(t, err)
	require.Equal(t, runtimetest.Repeat(2, queue.Applied), outcomes)
	lost := claimed[0]
	lost.ID = id
	outcomes, err = s.Ack(t.Context(), lost)
	require.ErrorIs(t, err, outbox.ErrLeaseLost)
	require.Equal(t, []queue.Outcome{queue.Lost}, outcomes)
	require.Empty(t, runtimetest.ClaimN(t, s, 0))
	n, err := s.SweepDead(t.Context())
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = s.Prune(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.True(t, pgtest.Value[bool](t, pool, "SELECT status IS NULL AND attempts IS NULL AND finalized_at IS NULL FROM outbox.event_status WHERE id = $1", id))
}

// TestPruneDeletesFinalStatesWithoutEvents, and those with events, and leaves those that are young or of another topic.
func TestPruneDeletesFinalStatesWithoutEvents(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	for _, table := range []string{"delivered", "dead"} {
		pgtest.Execute(t, pool, `INSERT INTO testing.events (namespace, topic, payload, status, finalized_at)
			SELECT 'test', CASE WHEN n < 7 THEN 'ping' ELSE 'pong' END, '1', $1, CASE WHEN n = 6 THEN now() ELSE '2000-01-01' END FROM generate_series(1, 8) AS n`, table)
	}
	pgtest.Execute(t, pool, "INSERT INTO outbox.dead_letters (listener, seq, bucket, id, namespace, topic, version, payload, created_at, attempts, error, died_at) VALUES ('mail', 1, 1, gen_random_uuid(), 'test', 'ping', 1, '1', '2000-01-01', 1, 'x', '2000-01-01')")
	pgtest.Execute(t, pool, `DELETE FROM outbox.events WHERE id IN (
		SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY topic, status ORDER BY finalized_at, id) AS n FROM testing.events) AS e WHERE n <= 3 AND topic = 'ping' OR topic = 'pong')`)
	s, err := queue.NewStore(pool, queue.StoreConfig{Namespace: runtimetest.Namespace, Retention: map[string]outbox.Retention{"ping": {Delivered: time.Hour, Dead: time.Hour}}})
	require.NoError(t, err)
	n, err := s.Prune(t.Context())
	require.NoError(t, err)
	require.Equal(t, 10, n)
	require.Equal(t, "2 3 4", pgtest.Value[string](t, pool, "SELECT concat_ws(' ', (SELECT count(*) FROM outbox.events), (SELECT count(*) FROM outbox.delivered), (SELECT count(*) FROM outbox.dead_letters))"))
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters WHERE listener = 'mail'"))
}

// kept is a failure as the column failures has it.
type kept struct {
	Attempt int
	At      time.Time
	Worker  uuid.UUID
	Error   string
}

func failuresOf(t testing.TB, pool *pgxpool.Pool, from string, id uuid.UUID) []kept {
	t.Helper()
	return pgtest.Value[[]kept](t, pool, "SELECT failures FROM outbox."+from+" WHERE id = $1", id)
}

// TestLatestFailuresAreKept: at most five, with attempt, time, worker and error, after the event is delivered and in its
// dead letter too. A release is not a failure.
func TestLatestFailuresAreKept(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	workers := []uuid.UUID{uuid.New(), uuid.New()}
	var stores []*queue.Store
	for _, w := range workers {
		stores = append(stores, runtimetest.StoreOf(t, pool, w))
	}
	begin := pgtest.Value[time.Time](t, pool, "SELECT clock_timestamp()")
	ids := []uuid.UUID{}
	for _, r := range runtimetest.EnqueueN(t, pool, 3) {
		ids = append(ids, r.ID)
	}
	var want []kept
	text := func(n int) string { return "no " + strings.Repeat("x", n) }
	check := func(from string, id uuid.UUID, want []kept) {
		t.Helper()
		got := failuresOf(t, pool, from, id)
		for i := range got {
			require.WithinRange(t, got[i].At, begin, pgtest.Value[time.Time](t, pool, "SELECT clock_timestamp()"))
			if i > 0 {
				require.True(t, got[i-1].At.Before(got[i].At))
			}
			got[i].At = time.Time{}
		}
		require.Equal(t, want, got)
	}
	require.True(t, pgtest.Value[bool](t, pool, "SELECT failures IS NULL AND last_error IS NULL FROM outbox.event_status WHERE id = $1", ids[0]))
	for n := range 7 {
		s := stores[n%2]
		runtimetest.MakeDue(t, pool)
		_, err := s.Release(t.Context(), runtimetest.ClaimN(t, s, 3)...)
		require.NoError(t, err)
		outcomes, err := s.Nack(t.Context(), failures(errors.New(text(n)), runtimetest.ClaimN(t, s, 3)...)...)
		require.NoError(t, err)
		require.Equal(t, runtimetest.Repeat(3, queue.Applied), outcomes)
		want = append(want, kept{Attempt: n + 1, Worker: workers[n%2], Error: text(n)})
		want = want[max(0, len(want)-5):]
		check("event_status", ids[0], want)
		require.Equal(t, text(n), runtimetest.StateOf(t, pool, ids[0]).LastError)
	}
	runtimetest.MakeDue(t, pool)
	claimed := runtimetest.ClaimN(t, stores[0], 3)
	for _, c := range claimed {
		var err error
		switch c.ID {
		case ids[0]:
			_, err = stores[0].Ack(t.Context(), c)
		case ids[1]:
			_, err = stores[0].Nack(t.Context(), failures(outbox.Permanent(errors.New("never")), c)...)
		default:
			pgtest.Execute(t, pool, "UPDATE outbox.queue SET max_attempts = attempts WHERE id = $1", c.ID)
			runtimetest.ExpireLeases(t, pool, c.ID)
			_, err = stores[1].SweepDead(t.Context())
		}
		require.NoError(t, err)
	}
	for _, from := range []string{"event_status", "delivered"} {
		check(from, ids[0], want)
	}
	require.Equal(t, text(6), runtimetest.StateOf(t, pool, ids[0]).LastError, "the latest, although it is delivered")
	for _, from := range []string{"event_status", "dead_letters"} {
		check(from, ids[1], append(want[1:len(want):len(want)], kept{Attempt: 8, Worker: workers[0], Error: "never"}))
		ran := "lease ran out on attempt 8, worker " + workers[0].String() + " did not answer; before: " + text(6)
		check(from, ids[2], append(want[1:len(want):len(want)], kept{Attempt: 8, Worker: workers[0], Error: ran}))
		require.Equal(t, ran, runtimetest.StateOf(t, pool, ids[2]).LastError)
	}
	require.Equal(t, "never", runtimetest.StateOf(t, pool, ids[1]).LastError)
}

// TestEventStatus: the view shows each event with its state.
func TestEventStatus(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	worker := uuid.New()
	s := runtimetest.StoreOf(t, pool, worker)
	type status struct {
		Status                     *string
		Attempts, MaxAttempts      *int
		ClaimNo                    *int64
		LockedBy                   uuid.NullUUID
		LastError                  *string
		Due, Leased, Failed, Final bool
	}
	read := func(id uuid.UUID) status {
		rows, err := pool.Query(t.Context(), `SELECT status, attempts, max_attempts, claim_no, locked_by, last_error,
			coalesce(next_attempt_at <= now(), false) AS due, locked_until IS NOT NULL AS leased, failures IS NOT NULL AS failed, finalized_at IS NOT NULL AS final
			FROM outbox.event_status WHERE id = $1`, id)
		require.NoError(t, err)
		r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[status])
		require.NoError(t, err)
		return r
	}
	m := runtimetest.Message(runtimetest.TenantA, 1)
	m.PartitionKey, m.Headers, m.Entity, m.MaxAttempts = "p", map[string]string{"a": "b"}, outbox.Entity{Type: "order", ID: "1", Version: 2}, 2
	id := runtimetest.EnqueueAll(t, pool, m)[0].ID
	require.True(t, pgtest.Value[bool](t, pool, `SELECT to_jsonb(e) <@ to_jsonb(s) FROM outbox.events AS e JOIN outbox.event_status AS s ON s.id = e.id`), "every column of the event")

	pending, processing, delivered, dead := "pending", "processing", "delivered", "dead"
	zero, one, two, no := 0, 1, 2, "no"
	none, first, second, third := int64(0), int64(1), int64(2), int64(3)
	by := uuid.NullUUID{UUID: worker, Valid: true}
	require.Equal(t, status{Status: &pending, Attempts: &zero, MaxAttempts: &two, ClaimNo: &none, Due: true}, read(id))
	claimed := runtimetest.ClaimN(t, s, 1)
	require.Equal(t, status{Status: &processing, Attempts: &one, MaxAttempts: &two, ClaimNo: &first, LockedBy: by, Due: true, Leased: true}, read(id))
	_, err := s.Nack(t.Context(), queue.Failure{Claimed: claimed[0], Err: errors.New("no"), RetryAt: time.Now().Add(time.Hour)})
	require.NoError(t, err)
	require.Equal(t, status{Status: &pending, Attempts: &one, MaxAttempts: &two, ClaimNo: &first, LockedBy: by, LastError: &no, Failed: true}, read(id))
	runtimetest.MakeDue(t, pool)
	claimed = runtimetest.ClaimN(t, s, 1)
	_, err = s.Release(t.Context(), claimed...)
	require.NoError(t, err)
	require.Equal(t, status{Status: &pending, Attempts: &one, MaxAttempts: &two, ClaimNo: &second, LockedBy: by, LastError: &no, Due: true, Failed: true}, read(id))
	claimed = runtimetest.ClaimN(t, s, 1)
	_, err = s.Ack(t.Context(), claimed...)
	require.NoError(t, err)
	require.Equal(t, status{Status: &delivered, Attempts: &two, ClaimNo: &third, LockedBy: by, LastError: &no, Failed: true, Final: true}, read(id))

	died := runtimetest.EnqueueAll(t, pool, runtimetest.Message(runtimetest.TenantA, 2))[0].ID
	_, err = s.Nack(t.Context(), failures(outbox.Permanent(errors.New("no")), runtimetest.ClaimN(t, s, 1)...)...)
	require.NoError(t, err)
	limit := outbox.DefaultMaxAttempts
	require.Equal(t, status{Status: &dead, Attempts: &one, MaxAttempts: &limit, ClaimNo: &first, LockedBy: by, LastError: &no, Failed: true, Final: true}, read(died))

	pgtest.Execute(t, pool, "DELETE FROM outbox.delivered")
	require.Equal(t, status{}, read(id), "without a state")
	pgtest.Execute(t, pool, "INSERT INTO outbox.queue (id, namespace, topic) VALUES ($1, 'test', 'ping')", died)
	require.Equal(t, pending, *read(died).Status, "what is queued will be handled, whatever else it is")
	require.False(t, read(died).Final)
}

// TestQueuedAndFinalNextToARefusal: the log says so too if PostgreSQL refuses another event of the same round trip.
func TestQueuedAndFinalNextToARefusal(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	refuse(t, pool, "TG_OP = 'DELETE'")
	jobs := runtimetest.NumberedJobs(5)
	jobs[0].Secret = "refuse"
	ids := runtimetest.EnqueueJobs(t, pool, topic, jobs...)
	pgtest.Execute(t, pool, "INSERT INTO outbox.delivered (id, attempts, namespace, topic) SELECT id, 3, namespace, topic FROM outbox.events WHERE id = $1", ids[3])
	log := runtimetest.NewLogSpy()
	cfg := runtimetest.QuickConfig()
	cfg.Logger = log.Logger()
	report, err := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, runtimetest.Succeed)).Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 4, Lost: 1}, report)
	require.Equal(t, 1, strings.Count(log.String(), unsettled))
}

// TestMisfitsAreSaidOnce: a running dispatcher says that events have no state, and that events are queued although they are
// final, each once with a count, and says nothing of events that are as they should be.
func TestMisfitsAreSaidOnce(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const noState, final = "events have no state", "events are queued although they are final"
	for _, misfits := range []bool{true, false} {
		t.Run(fmt.Sprintf("misfits %v", misfits), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			topic := runtimetest.JobTopic("one")
			ids := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(9)...)
			later := runtimetest.EnqueueJobs(t, pool, runtimetest.JobTopic("unhandled"), runtimetest.NumberedJobs(3)...)
			if misfits {
				pgtest.Execute(t, pool, "DELETE FROM outbox.queue WHERE id = ANY ($1)", ids[:2])
				pgtest.Execute(t, pool, "INSERT INTO outbox.delivered (id, attempts, namespace, topic) SELECT unnest($1::uuid[]), 1, 'jobs', 'unhandled'", later)
			}
			log := runtimetest.NewLogSpy()
			cfg := runtimetest.QuickConfig()
			cfg.Logger, cfg.LeaseDuration, cfg.PollInterval = log.Logger(), time.Second, 100*time.Millisecond
			d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, runtimetest.Succeed))
			watch := queue.Watch(d)
			stop := runtimetest.StartDispatcher(t, d)
			for range 4 {
				pgtest.Receive(t, watch.Maintained, "a sweep")
			}
			require.NoError(t, stop())
			text := log.String()
			if !misfits {
				require.NotContains(t, text, noState)
				require.NotContains(t, text, final)
				return
			}
			require.Equal(t, 1, strings.Count(text, noState), text)
			require.Equal(t, 1, strings.Count(text, final), text)
			require.Contains(t, text, "count=2")
			require.Contains(t, text, "count=3")
		})
	}
}
