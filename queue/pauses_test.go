package queue_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// pausable is what the tests pause a part of: events of two topics and two tenants.
type pausable struct {
	pool             *pgxpool.Pool
	one, two         outbox.Topic[runtimetest.Job]
	tenantA, tenantB uuid.UUID
}

func newPausable(t *testing.T, fairness outbox.Fairness) *pausable {
	t.Helper()
	fair := func(s *outbox.TopicSpec) { s.Fairness = fairness }
	return &pausable{
		pool: pgtest.Database(t), tenantA: uuid.New(), tenantB: uuid.New(),
		one: runtimetest.Altered(runtimetest.JobTopic("one"), fair), two: runtimetest.Altered(runtimetest.JobTopic("two"), fair),
	}
}

// enqueue enqueues n events of each topic and tenant.
func (p *pausable) enqueue(t *testing.T, n int) (all int) {
	t.Helper()
	for _, topic := range []outbox.Topic[runtimetest.Job]{p.one, p.two} {
		for _, tenant := range []uuid.UUID{p.tenantA, p.tenantB} {
			jobs := make([]runtimetest.Job, n)
			for i := range jobs {
				jobs[i] = runtimetest.Job{TenantID: tenant, N: int64(i)}
			}
			all += len(runtimetest.EnqueueJobs(t, p.pool, topic, jobs...))
		}
	}
	return all
}

func (p *pausable) handlers(fn runtimetest.JobFunc) []queue.Handler {
	return []queue.Handler{runtimetest.OnJob(p.one, fn), runtimetest.OnJob(p.two, fn)}
}

// scopes are what can be paused of them.
func (p *pausable) scopes() map[string]admin.Scope {
	tenant := uuid.NullUUID{UUID: p.tenantA, Valid: true}
	return map[string]admin.Scope{
		"namespace":           {Namespace: "jobs"},
		"topic":               {Namespace: "jobs", Topic: "one"},
		"tenant":              {TenantID: tenant},
		"tenant of namespace": {Namespace: "jobs", TenantID: tenant},
		"tenant of topic":     {Namespace: "jobs", Topic: "one", TenantID: tenant},
	}
}

// covers says in SQL and in Go which events a scope covers.
func covers(s admin.Scope) (sql string, is func(outbox.Event) bool) {
	sql = "namespace = 'jobs'"
	if s.Topic != "" {
		sql += " AND topic = '" + s.Topic + "'"
	}
	if s.TenantID.Valid {
		sql += " AND tenant_id = '" + s.TenantID.UUID.String() + "'"
	}
	return sql, func(e outbox.Event) bool {
		return (s.Topic == "" || s.Topic == e.Topic) && (!s.TenantID.Valid || s.TenantID == e.TenantID)
	}
}

// awaitRead waits until d has read what is paused now. Of the signals, the first may be an old one, and the second may be of
// a reading that was under way.
func awaitRead(t *testing.T, watch queue.TestSignals) {
	t.Helper()
	for range 3 {
		pgtest.Receive(t, watch.Paused, "the pauses to be read")
	}
}

// TestPauseUnderLoad: what is paused comes to rest within one poll. Handlers that run finish, what is queued is released, no
// attempt is charged, and the rest is delivered. After the resume everything is delivered, each event once.
func TestPauseUnderLoad(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const workers, before = 4, 10
	for _, fairness := range []outbox.Fairness{"", outbox.FairnessTenant} {
		for name := range new(pausable).scopes() {
			t.Run(fmt.Sprintf("%s, fairness %q", name, fairness), func(t *testing.T) {
				t.Parallel()
				p := newPausable(t, fairness)
				scope := p.scopes()[name]
				where, covered := covers(scope)
				total := p.enqueue(t, 100)
				var handled atomic.Int64
				began, open := make(chan struct{}), make(chan struct{})
				cfg := runtimetest.QuickConfig()
				cfg.BatchSize, cfg.Concurrency = 40, workers
				d := runtimetest.Dispatcher(t, p.pool, cfg, p.handlers(func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
					if !covered(d.Event) {
						return nil
					}
					n := handled.Add(1)
					if n == before {
						close(began)
					}
					if n >= before {
						<-open
					}
					return nil
				})...)
				watch := queue.Watch(d)
				stop := runtimetest.StartDispatcher(t, d)
				pgtest.Receive(t, began, "the load")
				a := runtimetest.AdminOf(t, p.pool)
				runtimetest.Pause(t, a, scope)
				awaitRead(t, watch)
				pgtest.Eventually(t, func() bool {
					return runtimetest.CountWhere(t, p.pool, "status = 'processing' AND "+where) <= workers
				})
				close(open)
				pgtest.Settles(t, p.pool, 0, "SELECT count(*) FROM testing.events WHERE status = 'processing' AND "+where)
				pgtest.Settles(t, p.pool, 0, "SELECT count(*) FROM testing.events WHERE status <> 'delivered' AND NOT ("+where+")")
				require.LessOrEqual(t, handled.Load(), int64(before+workers))
				waiting := runtimetest.CountWhere(t, p.pool, "status = 'pending' AND attempts = 0 AND "+where)
				require.Equal(t, runtimetest.CountWhere(t, p.pool, where), waiting+int(handled.Load()), "nothing is charged")
				claims := pgtest.Count(t, p.pool, "SELECT sum(claim_no) FROM testing.events WHERE "+where)
				awaitRead(t, watch)
				require.Equal(t, claims, pgtest.Count(t, p.pool, "SELECT sum(claim_no) FROM testing.events WHERE "+where), "it is not even claimed")

				runtimetest.Resume(t, a, scope)
				pgtest.Settles(t, p.pool, total, runtimetest.DeliveredSQL+" AND attempts = 1")
				require.NoError(t, stop())
				require.EqualValues(t, runtimetest.CountWhere(t, p.pool, where), handled.Load(), "each event once")
			})
		}
	}
}

// TestPauseEndsByItself: until is a time of the database, and nobody has to write anything.
func TestPauseEndsByItself(t *testing.T) {
	t.Parallel()
	p := newPausable(t, "")
	total := p.enqueue(t, 1)
	until := time.Now().Add(time.Second)
	require.NoError(t, runtimetest.AdminOf(t, p.pool).Pause(t.Context(), admin.Scope{Namespace: "jobs"}, admin.Act{Who: "tester", Until: until}))
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, p.pool, runtimetest.QuickConfig(), p.handlers(runtimetest.Succeed)...))
	pgtest.Settles(t, p.pool, total, runtimetest.DeliveredSQL)
	require.Zero(t, pgtest.Count(t, p.pool, "SELECT count(*) FROM outbox.delivered WHERE finalized_at < $1", until))
	require.NoError(t, stop())
}

// TestPauseSurvivesARestart: a dispatcher that starts later claims nothing of what is paused, and is woken by the resume: it
// polls once per hour.
func TestPauseSurvivesARestart(t *testing.T) {
	t.Parallel()
	for name := range new(pausable).scopes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPausable(t, outbox.FairnessTenant)
			scope := p.scopes()[name]
			where, _ := covers(scope)
			total := p.enqueue(t, 5)
			a := runtimetest.AdminOf(t, p.pool)
			runtimetest.Pause(t, a, scope)
			cfg := runtimetest.SleeperConfig()
			d := runtimetest.Dispatcher(t, p.pool, cfg, p.handlers(runtimetest.Succeed)...)
			stop := runtimetest.StartDispatcher(t, d)
			pgtest.Settles(t, p.pool, 0, "SELECT count(*) FROM testing.events WHERE status <> 'delivered' AND NOT ("+where+")")
			runtimetest.TakenOver(t, p.pool, 0) // it sleeps
			require.Equal(t, runtimetest.CountWhere(t, p.pool, where), runtimetest.CountWhere(t, p.pool, "status = 'pending' AND claim_no = 0 AND "+where))
			runtimetest.Resume(t, a, scope)
			pgtest.Settles(t, p.pool, total, runtimetest.DeliveredSQL)
			require.NoError(t, stop())
		})
	}
}

// TestDrainAndClaimHonourPauses: a drain, and a store with and without a cursor, take nothing of what is paused, and everything
// after the resume.
func TestDrainAndClaimHonourPauses(t *testing.T) {
	t.Parallel()
	for name := range new(pausable).scopes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPausable(t, "")
			scope := p.scopes()[name]
			where, _ := covers(scope)
			total := p.enqueue(t, 5)
			pgtest.Execute(t, p.pool, "UPDATE outbox.queue SET next_attempt_at = next_attempt_at - interval '1 hour'") // before any trail
			a := runtimetest.AdminOf(t, p.pool)
			store, err := queue.NewStore(p.pool, queue.StoreConfig{Namespace: "jobs"})
			require.NoError(t, err)
			claim := func(cursor *queue.Cursor) (ids []uuid.UUID) {
				t.Helper()
				for again := true; again; again = cursor != nil && !cursor.Done() {
					claimed, err := store.Claim(t.Context(), queue.ClaimConfig{Cursor: cursor})
					require.NoError(t, err)
					ids = append(ids, runtimetest.IDsOf(claimed)...)
					_, err = store.Release(t.Context(), claimed...)
					require.NoError(t, err)
					if cursor != nil && len(claimed) > 0 {
						break // they are before the cursor now
					}
				}
				return ids
			}
			cursor := new(queue.Cursor)
			require.Len(t, claim(nil), total)
			runtimetest.Pause(t, a, scope)
			paused := runtimetest.CountWhere(t, p.pool, where)
			require.Len(t, claim(nil), total-paused, "it is not what the store has read before")
			require.Zero(t, runtimetest.CountWhere(t, p.pool, "attempts > 0"))
			require.Len(t, claim(cursor), total-paused)
			report, err := runtimetest.Dispatcher(t, p.pool, queue.Config{}, p.handlers(runtimetest.Succeed)...).Drain(t.Context())
			require.NoError(t, err)
			require.Equal(t, queue.Report{Delivered: total - paused}, report)
			require.Empty(t, claim(cursor))
			require.True(t, cursor.Done())
			runtimetest.Resume(t, a, scope)
			require.Len(t, claim(nil), paused)
			require.Len(t, claim(cursor), paused, "the cursor has not passed them")
			report, err = runtimetest.Dispatcher(t, p.pool, queue.Config{}, p.handlers(runtimetest.Succeed)...).Drain(t.Context())
			require.NoError(t, err)
			require.Equal(t, queue.Report{Delivered: paused}, report)
		})
	}
}

// TestDrainNoticesAPause: a long drain stops at a pause, and continues after it if it is still under way.
func TestDrainNoticesAPause(t *testing.T) {
	t.Parallel()
	p := newPausable(t, "")
	all := p.enqueue(t, 250)
	a := runtimetest.AdminOf(t, p.pool)
	var handled atomic.Int64
	cfg := runtimetest.QuickConfig()
	cfg.BatchSize, cfg.Concurrency, cfg.PollInterval = 1, 1, time.Millisecond
	report, err := runtimetest.Dispatcher(t, p.pool, cfg, p.handlers(func(context.Context, outbox.Delivery[runtimetest.Job]) error {
		if handled.Add(1) == 10 {
			runtimetest.Pause(t, a, admin.Scope{Namespace: "jobs", Topic: "one"})
			runtimetest.Pause(t, a, admin.Scope{Namespace: "jobs", Topic: "two"})
		}
		return nil
	})...).Drain(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, handled.Load(), report.Delivered)
	require.Less(t, report.Delivered, all/2, "batches of one event, and what is paused is read 20 times per second")
}

// TestSweepLeavesPausedEventsAlone: a paused event whose worker died on the last attempt becomes a dead letter after the
// resume.
func TestSweepLeavesPausedEventsAlone(t *testing.T) {
	t.Parallel()
	for name := range new(pausable).scopes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPausable(t, "")
			scope := p.scopes()[name]
			where, _ := covers(scope)
			total := p.enqueue(t, 2)
			pgtest.Execute(t, p.pool, "UPDATE outbox.queue SET attempts = max_attempts")
			a := runtimetest.AdminOf(t, p.pool)
			runtimetest.Pause(t, a, scope)
			paused := runtimetest.CountWhere(t, p.pool, where)
			d := runtimetest.Dispatcher(t, p.pool, queue.Config{}, p.handlers(runtimetest.Succeed)...)
			report, err := d.Drain(t.Context())
			require.NoError(t, err)
			require.Equal(t, queue.Report{Dead: total - paused}, report)
			runtimetest.Resume(t, a, scope)
			report, err = d.Drain(t.Context())
			require.NoError(t, err)
			require.Equal(t, queue.Report{Dead: paused}, report)
		})
	}
}

// TestConcurrentPausesAreHarmless: eight operators pause and resume at random under load. In the end nothing is lost, and no
// event was charged.
func TestConcurrentPausesAreHarmless(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	p := newPausable(t, outbox.FairnessTenant)
	a := runtimetest.AdminOf(t, p.pool)
	var stops []func() error
	for range 2 {
		cfg := runtimetest.QuickConfig()
		cfg.PollInterval = 5 * time.Millisecond
		stops = append(stops, runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, p.pool, cfg, p.handlers(runtimetest.Succeed)...)))
	}
	total := p.enqueue(t, 50)
	var scopes []admin.Scope
	for _, s := range p.scopes() {
		scopes = append(scopes, s)
	}
	var operators sync.WaitGroup
	for range 8 {
		operators.Go(func() {
			for range 20 {
				scope, act := scopes[rand.IntN(len(scopes))], admin.Act{Who: "tester"}
				if rand.IntN(2) == 0 {
					act.Until = time.Now().Add(time.Minute)
				}
				if rand.IntN(2) == 0 {
					pgtest.Check(t, a.Pause(t.Context(), scope, act))
				} else {
					_, err := a.Resume(t.Context(), scope, act)
					pgtest.Check(t, err)
				}
			}
		})
	}
	total += p.enqueue(t, 50)
	operators.Wait()
	for _, scope := range scopes {
		_, err := a.Resume(t.Context(), scope, admin.Act{Who: "tester"})
		require.NoError(t, err)
	}
	pgtest.Settles(t, p.pool, total, runtimetest.DeliveredSQL+" AND attempts = 1")
	for _, stop := range stops {
		require.NoError(t, stop())
	}
}

// TestResumeBeforeADispatcherIsListed: who ends the pause of a tenant in all namespaces rings the dispatchers that stand in
// the table processes. One that sleeps and is listed only afterwards reads what is paused once more.
func TestResumeBeforeADispatcherIsListed(t *testing.T) {
	t.Parallel()
	for _, wake := range []outbox.Wake{outbox.WakeDoorbell, outbox.WakePoll} {
		t.Run(string(wake), func(t *testing.T) {
			t.Parallel()
			p := newPausable(t, "")
			total := p.enqueue(t, 1)
			tenantA, tenantB := admin.Scope{TenantID: outbox.Tenant(p.tenantA)}, admin.Scope{TenantID: outbox.Tenant(p.tenantB)}
			a := runtimetest.AdminOf(t, p.pool)
			runtimetest.Pause(t, a, tenantA)
			runtimetest.Pause(t, a, tenantB)
			unlisted := pgtest.Begin(t, p.pool, pgx.TxOptions{})
			_, err := unlisted.Exec(t.Context(), "LOCK TABLE outbox.processes IN SHARE MODE") // nobody can be listed
			require.NoError(t, err)
			d := runtimetest.Dispatcher(t, p.pool, queue.Config{
				PollInterval: runtimetest.Rarely, MaxPollInterval: runtimetest.Rarely, LeaseDuration: 3 * runtimetest.Rarely, Wake: wake,
				Logger: runtimetest.DiscardLogger(),
			}, p.handlers(runtimetest.Succeed)...)
			watch := queue.Watch(d)
			runtimetest.StartDispatcher(t, d)
			pgtest.Receive(t, watch.Idle, "the dispatcher to sleep")
			runtimetest.Resume(t, a, tenantA)
			runtimetest.Resume(t, a, tenantB)
			require.Zero(t, pgtest.Count(t, p.pool, runtimetest.DeliveredSQL))
			require.NoError(t, unlisted.Rollback(t.Context()))
			pgtest.Settles(t, p.pool, total, runtimetest.DeliveredSQL)
		})
	}
}
