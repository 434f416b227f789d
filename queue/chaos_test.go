package queue_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/internal/testing/suspend"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
)

const chaosWorkers = 4

// limitChaos is a campaign: worker processes with limits, and what is done to them.
type limitChaos struct {
	t       *testing.T
	server  *pgserver.Server
	pool    *pgxpool.Pool
	admin   *admin.Admin
	fast    bool          // many events of topics with wide limits
	calm    time.Duration // between rounds, at most
	workers []*runtimetest.Child
	edition int // of the newest start
	begun   int // processes
	faults  map[string]int
	without []span // when nothing needs to start
	topics  []chaosTopic
	referee map[string]*referee // by topic

	mu        sync.Mutex
	committed []uuid.UUID
}

func newLimitChaos(t *testing.T, fast bool) *limitChaos {
	t.Helper()
	c := &limitChaos{
		t: t, fast: fast, calm: 500 * time.Millisecond, server: pgtest.Server(t, pgserver.Options{}), faults: make(map[string]int), topics: chaosTopics(0, fast), referee: make(map[string]*referee),
	}
	for _, topic := range c.topics {
		spec := topic.spec()
		c.referee[spec.Name] = refereeOf(spec.Name, spec.Limits)
		if fast { // on a machine that is busy all the time
			c.calm, c.referee[spec.Name].awhile = 10*time.Second, 3*awhile
		}
	}
	c.pool = pgtest.Pool(t, c.server.URL())
	_, err := migrate.Up(t.Context(), c.pool, pgtest.Schema)
	require.NoError(t, err)
	audit(t, c.pool)
	c.admin = runtimetest.AdminOf(t, c.pool)
	for range chaosWorkers {
		c.start(false)
	}
	return c
}

// start starts a process of the newest edition, and waits until it runs.
func (c *limitChaos) start(drain bool) *runtimetest.Child {
	c.t.Helper()
	c.begun++
	child := runtimetest.Spawn(c.t, "TestChaosChild", chaosVariable, chaosOrders{
		URL: runtimetest.ChildURL(c.t, c.pool), Worker: fmt.Sprint("worker ", c.begun), Edition: c.edition, Fast: c.fast, Drain: drain,
	})
	if !drain {
		require.Contains(c.t, child.Await(c.t, "dispatcher starts"), "dispatcher starts")
		c.workers = append(c.workers, child)
		go func() {
			for range child.Lines { // until it ends
			}
		}()
	}
	return child
}

// take takes a random worker out of the list.
func (c *limitChaos) take() *runtimetest.Child {
	i := rand.IntN(len(c.workers))
	child := c.workers[i]
	c.workers = append(c.workers[:i], c.workers[i+1:]...)
	return child
}

// pass lets the workers work for a random time.
func (c *limitChaos) pass(most time.Duration) { <-time.After(rand.N(most)) }

// kill ends a worker with SIGKILL and starts another one.
func (c *limitChaos) kill() {
	c.take().Kill()
	c.pass(200 * time.Millisecond)
	c.start(false)
}

// suspend stops a worker until its leases have run out, and continues it.
func (c *limitChaos) suspend() {
	w := c.workers[rand.IntN(len(c.workers))]
	w.Signal(c.t, suspend.Stop)
	<-time.After(chaosLease + 500*time.Millisecond)
	w.Signal(c.t, suspend.Continue)
}

// restart restarts the server, half of the time after SIGKILL.
func (c *limitChaos) restart() {
	at := time.Now()
	if rand.IntN(2) == 0 {
		require.NoError(c.t, c.server.Kill())
	}
	require.NoError(c.t, c.server.Restart())
	c.without = append(c.without, span{at, time.Now().Add(2 * time.Second)}) // processes connect again after a pause
}

// deploy starts a process of the next edition, and ends one of the edition before. The next processes are of that edition.
func (c *limitChaos) deploy() {
	old := c.take()
	c.edition = (c.edition + 1) % chaosEditions
	c.start(false)
	old.Signal(c.t, syscall.SIGTERM)
	require.NoError(c.t, old.Wait())
}

// rollback starts a process of the next edition, and ends it again.
func (c *limitChaos) rollback() {
	was := c.edition
	c.edition = (c.edition + 1) % chaosEditions
	c.start(false)
	c.edition = was
	c.pass(500 * time.Millisecond)
	last := len(c.workers) - 1
	c.workers[last].Signal(c.t, syscall.SIGTERM)
	require.NoError(c.t, c.workers[last].Wait())
	c.workers = c.workers[:last]
}

// replay replays all dead letters.
func (c *limitChaos) replay() {
	_, err := c.admin.Replay(c.t.Context(), admin.Filter{Namespace: "jobs"}, admin.Act{Who: "tester"})
	require.NoError(c.t, err)
}

// pause pauses the topic or a tenant for a moment.
func (c *limitChaos) pause() {
	s := admin.Scope{Namespace: "jobs"}
	if rand.IntN(2) == 0 {
		s.Topic = c.topics[rand.IntN(len(c.topics))].spec().Name
	} else {
		s.TenantID = uuid.NullUUID{UUID: uuid.UUID{byte(1 + rand.IntN(chaosTenants))}, Valid: true}
	}
	at := time.Now()
	runtimetest.Pause(c.t, c.admin, s)
	c.pass(time.Second)
	runtimetest.Resume(c.t, c.admin, s)
	c.without = append(c.without, span{at, time.Now()})
}

// drain drains beside the workers.
func (c *limitChaos) drain() {
	child := c.start(true)
	require.Empty(c.t, child.Await(c.t, "--- FAIL"))
	require.NoError(c.t, child.Wait())
}

// set sets other values for a second, as an operator does.
func (c *limitChaos) set() {
	pgtest.Execute(c.t, c.pool, `UPDATE outbox.limits SET set_concurrency = (concurrency + 1) / 2, set_rate = rate - 2,
		set_period = period, set_until = clock_timestamp() + interval '1 s', set_at = now(), set_by = 'tester'`)
	<-time.After(time.Second)
}

// produce enqueues while the backlogs are small.
func (c *limitChaos) produce(ctx context.Context) {
	n := int64(0)
	for ctx.Err() == nil {
		backlog := make(map[string]int)
		rows, err := c.pool.Query(ctx, "SELECT topic, count(*) FROM outbox.queue GROUP BY topic")
		if err == nil {
			var topic string
			var waiting int
			_, err = pgx.ForEachRow(rows, []any{&topic, &waiting}, func() error {
				backlog[topic] = waiting
				return nil
			})
		}
		all := make(map[*outbox.Topic[runtimetest.Job]][]runtimetest.Job)
		for i := range c.topics {
			topic := &c.topics[i]
			for range min((topic.backlog-backlog[topic.spec().Name])/2, 1000) {
				n++
				all[&topic.Topic] = append(all[&topic.Topic], topic.job(n))
			}
		}
		if err == nil && len(all) > 0 {
			c.enqueue(ctx, all)
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// enqueue enqueues in one transaction. Whether it was committed is unknown if the server restarts.
func (c *limitChaos) enqueue(ctx context.Context, all map[*outbox.Topic[runtimetest.Job]][]runtimetest.Job) {
	var ids []uuid.UUID
	err := pgx.BeginFunc(context.WithoutCancel(ctx), c.pool, func(tx pgx.Tx) error {
		for topic, jobs := range all {
			receipts, err := topic.EnqueueMany(ctx, tx, jobs)
			if err != nil {
				return err
			}
			for _, r := range receipts {
				ids = append(ids, r.ID)
			}
		}
		return nil
	})
	if err == nil {
		c.mu.Lock()
		c.committed = append(c.committed, ids...)
		c.mu.Unlock()
	}
}

// finish lets the workers deliver all that is left, with replays of what dies, and ends them.
func (c *limitChaos) finish() {
	pgtest.Eventually(c.t, func() bool {
		c.replay()
		return pgtest.Count(c.t, c.pool, "SELECT (SELECT count(*) FROM outbox.queue) + (SELECT count(*) FROM outbox.dead_letters)") == 0
	})
	for _, w := range c.workers {
		w.Signal(c.t, syscall.SIGTERM)
	}
	for _, w := range c.workers {
		require.NoError(c.t, w.Wait())
	}
}

// judge lets the referees see what has happened since. The server must not restart meanwhile.
func (c *limitChaos) judge() (leases int, wrong []string) {
	c.t.Helper()
	for name, h := range takeHistories(c.t, c.pool) {
		r := c.referee[name]
		r.without = c.without
		r.check(h)
	}
	for _, r := range c.referee {
		leases += r.result.Leases
		wrong = append(wrong, r.result.Wrong...)
	}
	return leases, wrong
}

// TestChaosOfLimits: whatever is done to worker processes and the server, at no moment are more events of a key leased than
// its limit allows, in no period do more start, every event is delivered, and no key waits that might start one. It ends after
// OUTBOXGEN_CHAOS_ROUNDS, and not before as many attempts have begun as OUTBOXGEN_CHAOS_ATTEMPTS says.
func TestChaosOfLimits(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	began, attempts, leases := time.Now(), runtimetest.Attempts(), 0
	c := newLimitChaos(t, attempts > 0)
	t.Logf("%d workers run after %s", chaosWorkers, time.Since(began).Round(time.Second/10))
	ctx, cancel := context.WithCancel(t.Context())
	var producing sync.WaitGroup
	producing.Go(func() { c.produce(ctx) })
	defer producing.Wait()
	defer cancel()
	faults := []struct {
		name  string
		cause func()
	}{
		{"set", c.set}, {"restart", c.restart}, {"suspend", c.suspend}, {"deploy", c.deploy}, {"pause", c.pause}, {"drain", c.drain}, {"replay", c.replay},
		{"rollback", c.rollback},
	}
	const perRound = 3
	rounds, caused := 0, []string{}
	for ; rounds < runtimetest.Rounds(3) || leases < attempts; rounds++ {
		c.pass(c.calm)
		c.kill()
		c.faults["kill"]++
		for i := range perRound {
			f := faults[(rounds*perRound+i)%len(faults)]
			c.pass(300 * time.Millisecond)
			caused = append(caused, time.Now().UTC().Format(time.StampMilli)+" "+f.name)
			f.cause()
			c.faults[f.name]++
		}
		var wrong []string
		leases, wrong = c.judge()
		require.Empty(t, wrong, "the latest faults were %v", caused[max(len(caused)-10, 0):])
		if rounds%10 == 9 {
			t.Logf("%d rounds, %d events, %d attempts after %s", rounds+1, len(c.committed), leases, time.Since(began).Round(time.Second/10))
		}
	}
	cancel()
	producing.Wait()
	t.Logf("the faults end after %s", time.Since(began).Round(time.Second/10))
	c.finish()
	t.Logf("all is delivered after %s", time.Since(began).Round(time.Second/10))
	<-time.After(1100 * time.Millisecond) // what is not older than a second is left out
	leases, wrong := c.judge()
	for _, topic := range c.topics {
		spec := topic.spec()
		r := c.referee[spec.Name]
		r.checkCalls(readCalls(t, c.pool, spec.Name))
		found := r.result
		wrong = append(wrong, found.Wrong...)
		t.Logf("topic %s: %+v", spec.Name, found)
		for _, l := range spec.Limits {
			if topic.most > 0 {
				require.GreaterOrEqual(t, found.Most[l.Per], (l.Concurrency+1)/2, "the limit is used")
				require.GreaterOrEqual(t, found.MostStarts[l.Per], l.Rate.Events/2, "the rate is used")
			}
		}
	}
	require.Empty(t, wrong)
	require.Zero(t, pgtest.Count(t, c.pool, "SELECT count(*) FROM audit.changes"), "the referees have seen everything")
	require.Zero(t, pgtest.Count(t, c.pool, "SELECT count(*) FROM unnest($1::uuid[]) AS c (id) WHERE NOT EXISTS (SELECT FROM outbox.delivered AS d WHERE d.id = c.id)", c.committed),
		"an event that was committed is delivered")
	require.Zero(t, pgtest.Count(t, c.pool, `SELECT count(*) FROM outbox.delivered AS d WHERE topic NOT IN ('wide', 'swift')
		AND NOT EXISTS (SELECT FROM audit.calls AS a WHERE a.id = d.id)`), "a handler has seen what is delivered")
	off := pgtest.Value[time.Duration](t, c.pool, "SELECT max(greatest(clock - began, began - clock)) FROM audit.calls")
	if os.Getenv("OUTBOXGEN_CHAOS_CLOCKS") != "" {
		require.Greater(t, off, time.Minute, "the clocks of the processes jump: run make chaos-million, whose overlay steps them")
	}
	require.NotContains(t, strings.ToUpper(c.server.Log()), "DEADLOCK")
	t.Logf("%d processes, clocks up to %s wrong, %d events, faults: %v", c.begun, off.Round(time.Second), len(c.committed), c.faults)
	t.Logf("rounds: %d, leases: %d, kills: %d, stops: %d, restarts: %d, violations: %d, after %s", rounds, leases, c.faults["kill"], c.faults["suspend"],
		c.faults["restart"], len(wrong), time.Since(began).Round(time.Second))
}
