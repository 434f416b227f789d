package queue_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
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

// Negative controls: claims that lack one guard. They show that the referee of limits finds what it is there to find.

// guard is a part of the function claim_turns that is replaced, or with set of the view limits_in_force, and what the referee then says.
type guard struct {
	from, to string
	found    string
	limits   []outbox.Limit
	set      bool // an operator has set a concurrency of 1, and a rate of 2
}

func guards() map[string]guard {
	places := []outbox.Limit{{Concurrency: 3}, {Per: outbox.PerTenant, Concurrency: 2}, {Per: "{secret}", Concurrency: 1}}
	rates := []outbox.Limit{{Per: "{secret}", Rate: outbox.Rate{Events: 4, Period: time.Second}}}
	return map[string]guard{
		"none": {limits: append(places[:2:2], outbox.Limit{Per: "{secret}", Concurrency: 1, Rate: rates[0].Rate})},
		"keys are not locked": {
			from:  "AND u.key = k_key[k.k]\n                    FOR NO KEY UPDATE SKIP LOCKED",
			to:    "AND u.key = k_key[k.k]",
			found: "leases of", limits: places,
		},
		"counted before the lock": {from: "FOR pass IN 1..2 LOOP", to: "FOR pass IN 1..1 LOOP", found: "leases of", limits: places},
		"leases that ran out are forgotten": {
			from: "q.id = r.id AND q.locked_until IS NOT NULL", to: "q.id = r.id AND q.locked_until > statement_timestamp()", found: "leases of",
			limits: places[2:],
		},
		"places far away are not counted":           {from: "k.max - l.n > p_batch_size", to: "true", found: "leases of", limits: places},
		"keys that others have locked are not left": {from: "NOT k.no = ANY (x_busy)", to: "true", found: "leases of", limits: places},
		"what runs is not noted":                    {from: ") END || d.ids,", to: ") END,", found: "leases of", limits: places[2:]},
		"starts are counted when they are claimed": {
			from:  "date_bin(k_period[k.k] / 64, now_at + greatest(k_period[k.k] / 32, least(k_period[k.k] / 4, p_slack)), 'epoch')",
			to:    "date_bin(k_period[k.k] / 64, now_at - k_period[k.k] / 8, 'epoch')",
			found: "in 1s", limits: rates,
		},
		"a shorter window": {from: "WHERE t.at >= now_at - k.period", to: "WHERE t.at >= now_at - k.period * 0.5", found: "starts in 1s", limits: rates},
		"starts are not counted in a claim": {
			from: "AND f.place <= coalesce(k_starts[f.k], f.place)", to: "", found: "starts in 1s", limits: rates,
		},
		"places are not counted in a claim": {
			from: "AND (f.late OR f.added <= coalesce(k_room[f.k], f.added))", to: "", found: "leases of", limits: places,
		},
		"only the first limit": {from: "FOR n IN 1..n_max LOOP", to: "FOR n IN 1..1 LOOP", found: `per ""`, limits: places},
		"set concurrency is ignored": {
			from: "COALESCE(l.set_concurrency, l.concurrency)", to: "l.concurrency", found: "leases of", limits: places, set: true,
		},
		"set rate is ignored": {from: "COALESCE(l.set_rate, l.rate)", to: "l.rate", found: "starts in 1s", limits: rates, set: true},
	}
}

// edit replaces a part of the function claim_turns in the database of pool.
func (g guard) edit(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	if g.from == "" {
		return
	}
	object, source := "claim_turns", "SELECT pg_get_functiondef('outbox.claim_turns'::regproc)"
	if g.set {
		object = "limits_in_force"
		source = "SELECT 'CREATE OR REPLACE VIEW outbox.limits_in_force AS ' || pg_get_viewdef('outbox.limits_in_force'::regclass)"
	}
	text := pgtest.Value[string](t, pool, source)
	require.True(t, strings.Contains(text, g.from), "%s does not contain %q: %s", object, g.from, text)
	pgtest.Execute(t, pool, strings.ReplaceAll(text, g.from, g.to))
}

// TestRefereeFindsMissingGuards: if the function claim_turns, or the view that it reads, lacks a guard, four dispatchers break a limit within seconds,
// and the referee says so. With all of them it finds nothing.
func TestRefereeFindsMissingGuards(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, g := range guards() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			found := g.play(t, 40*time.Second)
			if g.from == "" {
				require.Empty(t, found.Wrong)
				require.Equal(t, map[string]int{"": 3, "tenant": 2, "{secret}": 1}, found.Most)
			} else {
				require.Contains(t, strings.Join(found.Wrong, "\n"), g.found)
			}
			t.Logf("after %s, %d leases and %d handlers: %d violations, the first: %s", time.Since(began).Round(time.Second/10), found.Leases, found.Calls,
				len(found.Wrong), append(found.Wrong, "")[0])
		})
	}
}

// play runs four dispatchers, and a claimer that never settles anything, until the referee finds something that is wrong: for
// at most a time, or for six seconds if no guard is missing.
func (g guard) play(t *testing.T, most time.Duration) (found findings) {
	t.Helper()
	pool := pgtest.Database(t)
	audit(t, pool)
	topic := runtimetest.Altered(runtimetest.LimitedJobs("limited", g.limits...), func(s *outbox.TopicSpec) {
		s.Fairness, s.Retry.MaxAttempts = outbox.FairnessTenant, patientLimit
	})
	if g.set { // before a process declares them
		g.declare(t, pool, topic)
	}
	g.edit(t, pool)
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	defer others.Wait()
	defer cancel()
	others.Go(func() { g.produce(ctx, t, pool, topic) })
	var stops []func() error
	for i := range 4 {
		cfg := runtimetest.QuickConfig()
		cfg.Concurrency, cfg.BatchSize, cfg.LeaseDuration = 4, 20, time.Second
		stops = append(stops, runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pgtest.AnotherPool(t, pool), cfg,
			recorded(pool, topic, fmt.Sprint("dispatcher ", i), 10*time.Millisecond))))
	}
	pgtest.Settles(t, pool, len(g.limits), "SELECT count(*) FROM outbox.limits") // leases from before do not count
	others.Go(func() { g.leave(ctx, t, pool) })
	if g.from == "" {
		most = 6 * time.Second
	}
	for ends := time.Now().Add(most); time.Now().Before(ends); {
		<-time.After(300 * time.Millisecond)
		if found = judge(t, pool, "limited", g.limits); strings.Contains(strings.Join(found.Wrong, "\n"), g.found) && g.from != "" {
			break
		}
	}
	cancel()
	others.Wait()
	for _, stop := range stops {
		require.NoError(t, stop())
	}
	return found
}

// declare declares the limits, and sets others.
func (g guard) declare(t *testing.T, pool *pgxpool.Pool, topic outbox.Topic[runtimetest.Job]) {
	t.Helper()
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed)))
	pgtest.Settles(t, pool, len(g.limits), "SELECT count(*) FROM outbox.limits")
	require.NoError(t, stop())
	pgtest.Execute(t, pool, `UPDATE outbox.limits SET set_concurrency = 1, set_rate = CASE WHEN rate > 0 THEN 2 END, set_period = period,
		set_until = now() + interval '1 h', set_at = now(), set_by = 'tester'`)
}

// produce enqueues while few events wait.
func (g guard) produce(ctx context.Context, t *testing.T, pool *pgxpool.Pool, topic outbox.Topic[runtimetest.Job]) {
	for n := int64(1); ctx.Err() == nil; {
		var backlog int
		if err := pool.QueryRow(ctx, "SELECT count(*) FROM outbox.queue").Scan(&backlog); err == nil && backlog < 60 {
			jobs := make([]runtimetest.Job, 10)
			for i := range jobs {
				field := rand.IntN(6)
				jobs[i], n = runtimetest.Job{N: n, TenantID: uuid.UUID{byte(1 + field%3)}, Secret: fmt.Sprint("field ", field)}, n+1
			}
			err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				_, err := topic.EnqueueMany(ctx, tx, jobs)
				return err
			})
			pgtest.Check(t, unless(ctx, err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// leave claims an event now and then, and leaves it until its lease has run out, as a process does that is killed.
func (g guard) leave(ctx context.Context, t *testing.T, pool *pgxpool.Pool) {
	s, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "jobs"})
	if !pgtest.Check(t, err) {
		return
	}
	for ctx.Err() == nil {
		_, err := s.Claim(ctx, queue.ClaimConfig{Topics: []string{"limited"}, BatchSize: 1, LeaseDuration: 200 * time.Millisecond})
		pgtest.Check(t, unless(ctx, err))
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// unless returns err unless ctx has ended.
func unless(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
