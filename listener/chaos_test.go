package listener_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
)

const (
	// stepsVariable says how many steps the writers take, for a long run.
	stepsVariable = "OUTBOXGEN_CHAOS_STEPS"
	chaosSteps    = 8_000
	chaosWriters  = 8
	chaosEntities = 24
	progressSteps = 50_000 // between two progress lines of a long run
)

// steps returns the number of steps of this run.
func steps(t testing.TB) int {
	t.Helper()
	text := os.Getenv(stepsVariable)
	if text == "" {
		return chaosSteps
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, stepsVariable)
	return n
}

// chaosTopics and chaosLoose, which has no partition key, are keyed by whether they are silent. Their events may be
// pruned as soon as every listener has passed them.
var (
	chaosTopics = map[bool]outbox.Topic[runtimetest.Said]{false: chaosTopic("keyed", false), true: chaosTopic("keyed", true)}
	chaosLoose  = map[bool]outbox.Topic[runtimetest.Said]{false: chaosTopic("loose", false), true: chaosTopic("loose", true)}
)

func chaosTopic(name string, silent bool) outbox.Topic[runtimetest.Said] {
	return outbox.NewTopic[runtimetest.Said](outbox.TopicSpec{
		Namespace: "chaos", Name: name, Version: 1, Log: true, Silent: silent, Retention: outbox.Retention{Delivered: time.Microsecond},
		Keys: func(v any) outbox.Keys {
			p := v.(*runtimetest.Said)
			if p.Key == "" {
				return outbox.Keys{}
			}
			return outbox.Keys{Partition: eventkey.NewKey(eventkey.StringPart("key", p.Key))}
		},
	})
}

func chaosKey(entity int) string { return fmt.Sprintf("e%d", entity) }

// chaos has the writers and readers of one database, and their signals to each other.
type chaos struct {
	name     string
	note     func(format string, args ...any)
	began    time.Time
	pool     *pgxpool.Pool // of the writers
	other    *pgxpool.Pool // on another database of the server
	steps    int64
	left     atomic.Int64  // steps
	heard    chan struct{} // a reader has heard something; holds one
	stepped  chan struct{} // some steps have been taken; holds one
	enqueued chan struct{} // a writer has taken an xid to enqueue, and waits to be overtaken; unbuffered
	overtook chan struct{} // a writer has overtaken another; unbuffered

	committed, rolledBack, prepared tally
	keepUp                          []*atomic.Int64 // how many events each reader has heard, so that writers do not get too far ahead
}

// tally counts transactions that have enqueued, and their events.
type tally struct{ txs, events atomic.Int64 }

func (n *tally) add(events int) {
	if events > 0 {
		n.txs.Add(1)
		n.events.Add(int64(events))
	}
}

// chaosDatabase makes a database on server, for which it returns chaos of so many steps and a pool for readers.
func chaosDatabase(t testing.TB, server *pgserver.Server, name string, steps int) (*chaos, *pgxpool.Pool) {
	t.Helper()
	c := &chaos{name: name, steps: int64(steps), note: t.Logf, began: time.Now(), heard: make(chan struct{}, 1), stepped: make(chan struct{}, 1), enqueued: make(chan struct{}), overtook: make(chan struct{})}
	c.left.Store(int64(steps))
	c.other = pgtest.Pool(t, server.URL())
	pgtest.Execute(t, c.other, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	pgtest.Execute(t, c.other, "CREATE TABLE IF NOT EXISTS elsewhere (no bigint GENERATED ALWAYS AS IDENTITY)")
	c.pool = pgtest.Pool(t, server.URLOf(name))
	_, err := migrate.Up(t.Context(), c.pool, "outbox")
	require.NoError(t, err)
	pgtest.Execute(t, c.pool, "CREATE TABLE entity (id int PRIMARY KEY, n int NOT NULL)")
	pgtest.Execute(t, c.pool, "INSERT INTO entity SELECT n, 0 FROM generate_series(0, $1::int - 1) AS n", chaosEntities)
	pgtest.Execute(t, c.pool, "CREATE TABLE fact (id uuid NOT NULL, seq bigint NOT NULL, bucket int NOT NULL, entity text NOT NULL, n int NOT NULL)")
	pgtest.Execute(t, c.pool, "CREATE TABLE noise (no bigint GENERATED ALWAYS AS IDENTITY)")
	pgtest.Execute(t, c.pool, "CREATE TABLE effect (no bigint GENERATED ALWAYS AS IDENTITY, id uuid NOT NULL)")
	return c, pgtest.Pool(t, server.URLOf(name))
}

// nextStep takes one of the remaining steps.
func (c *chaos) nextStep() bool {
	left := c.left.Add(-1)
	if taken := c.steps - left; taken%progressSteps == 0 && left > 0 {
		c.note("%d of %d steps after %s, %d events committed", taken, c.steps, time.Since(c.began).Round(time.Second), c.committed.events.Load())
	}
	if left%20 == 0 {
		select {
		case c.stepped <- struct{}{}:
		default:
		}
	}
	return left >= 0
}

// behind reports whether a reader is far behind: windows would become large and few.
func (c *chaos) behind() bool {
	for _, heard := range c.keepUp {
		if c.committed.events.Load()-heard.Load() > 100 {
			return true
		}
	}
	return false
}

// run makes all readers hear what the writers write, until all steps are taken, and returns the result of each.
func (c *chaos) run(t testing.TB, readers map[string]reader) map[string]chaosResult {
	t.Helper()
	for _, r := range readers { // attaches the reader: events pruned before do not count as lost
		require.NoError(t, r.drain(t.Context(), 1, func(uuid.UUID) {}))
	}
	over, calm := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	heard := make(map[string][]uuid.UUID)
	var writing, reading, others sync.WaitGroup
	for name, r := range readers {
		n := &atomic.Int64{}
		if !r.lossy {
			c.keepUp = append(c.keepUp, n)
		}
		reading.Go(func() {
			ids, err := c.listen(r, over, n)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			heard[name] = ids
		})
	}
	others.Go(func() { pgtest.Check(t, c.elsewhere(context.Background(), calm)) })
	seed := rand.Uint64()
	t.Logf("seed of the writers: %d", seed)
	for n := range chaosWriters {
		conn, err := c.pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
		w := &writer{of: c, name: n, rng: rand.New(rand.NewPCG(seed, uint64(n))), conn: conn.Conn()}
		writing.Go(func() {
			if !pgtest.Check(t, w.run(context.Background())) {
				c.left.Store(0)
			}
		})
	}
	writing.Wait()
	close(calm)
	others.Wait()
	close(over)
	reading.Wait()
	rows, err := c.pool.Query(t.Context(), "SELECT id, seq, bucket, entity, n FROM fact")
	require.NoError(t, err)
	facts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[fact])
	require.NoError(t, err)
	require.NotEmpty(t, facts)
	results := make(map[string]chaosResult)
	for name, r := range readers {
		results[name] = checkHeard(facts, heard[name], r.shards)
	}
	return results
}

// elsewhere holds transactions of another database open, one after the other, each for some steps.
func (c *chaos) elsewhere(ctx context.Context, over <-chan struct{}) error {
	for !closed(over) {
		err := pgx.BeginFunc(ctx, c.other, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO elsewhere DEFAULT VALUES"); err != nil {
				return err
			}
			for range rand.IntN(20) {
				select {
				case <-c.stepped:
				case <-over:
				}
			}
			if rand.IntN(2) == 0 {
				return errElsewhere
			}
			return nil
		})
		if err != nil && !errors.Is(err, errElsewhere) {
			return err
		}
	}
	return nil
}

var errElsewhere = errors.New("rolled back elsewhere")

// Whatever the writers do, and while the log is pruned, the cursor loses nothing, repeats nothing, invents nothing and
// keeps the order of each entity.
func TestChaosOfWriters(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	server := pgtest.Server(t, pgserver.Options{Settings: map[string]string{"max_prepared_transactions": "64"}})
	c, pool := chaosDatabase(t, server, "chaos", steps(t))
	patient := listener.Config{LeaseDuration: 5 * time.Minute, PruneInterval: -1}
	pruning := patient
	pruning.PruneInterval, pruning.PollInterval = 100*time.Millisecond, 50*time.Millisecond // silent events wake nobody
	readers := map[string]reader{
		"leased":        listens(t, pool, listener.Spec{Name: "leased"}, patient, 0),
		"running":       listens(t, pool, listener.Spec{Name: "running", Concurrency: 3, Shards: 3}, pruning, 2),
		"transactional": listensTx(t, pool, "transactional"),
	}
	results := c.run(t, readers)
	for _, name := range []string{"leased", "running"} {
		require.NotEmpty(t, readers[name].wentOn, "%s: what is read ahead is tested, too", name)
	}
	t.Logf("transactions with events: %d committed, %d rolled back, %d prepared", c.committed.txs.Load(), c.rolledBack.txs.Load(), c.prepared.txs.Load())
	for name, v := range results {
		t.Logf("%-13s %+v", name, v)
	}
	for name, v := range results {
		require.Equal(t, chaosResult{Facts: v.Facts, Heard: v.Facts, Stragglers: v.Stragglers}, v, name)
		if name != "running" { // with concurrent handlers there is no order to check
			require.Positive(t, v.Stragglers, name)
		}
	}
	for what, n := range map[string]*tally{"committed": &c.committed, "rolled back": &c.rolledBack, "prepared": &c.prepared} {
		require.Positive(t, n.txs.Load(), what)
	}
	require.Equal(t, 0, pgtest.Value[int](t, pool, "SELECT count(*) FROM (SELECT id FROM effect EXCEPT ALL SELECT id FROM fact) AS x"))
	require.Equal(t, results["leased"].Facts, pgtest.Value[int](t, pool, "SELECT count(*) FROM effect"), "exactly once")
	require.Equal(t, 0, pgtest.Value[int](t, pool, `
		SELECT count(*) FROM entity AS e
		WHERE e.n <> (SELECT count(*) FROM fact AS f WHERE f.entity = 'e' || e.id)`), "the facts are complete")
	require.Less(t, pgtest.Value[int](t, pool, "SELECT count(*) FROM outbox.log"), results["leased"].Facts, "pruned meanwhile")
	require.Zero(t, pgtest.Value[int](t, pool, "SELECT count(*) FROM outbox.listeners WHERE running OR lease_by IS NOT NULL"))
}
