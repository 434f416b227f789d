package listener_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestListenerStarts: a listener starts at the beginning of the log, or after the events that have committed. Events
// that were enqueued before and commit later are delivered.
func TestListenerStarts(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, shards := range []int{1, 3} {
		pool := pgtest.Database(t)
		runtimetest.Put(t, pool, "a", 1)
		late := pgtest.Begin(t, pool, pgx.TxOptions{})
		_, err := runtimetest.SaidTopic.Enqueue(t.Context(), late, runtimetest.Said{Key: "late", N: 1})
		require.NoError(t, err)
		runtimetest.Put(t, pool, "a", 2)
		h := map[bool]*runtimetest.Notes{false: runtimetest.NewNotes(), true: runtimetest.NewNotes()}
		open := func(latest bool) *listener.Listener {
			spec := listener.Spec{Name: map[bool]string{false: "earliest", true: "latest"}[latest], Latest: latest, Shards: shards}
			return runtimetest.ListenTo(t, pool, spec, listener.Config{}, h[latest])
		}
		require.Equal(t, listener.Report{Delivered: 2}, runtimetest.DrainAll(t, open(false)))
		require.Equal(t, listener.Report{}, runtimetest.DrainAll(t, open(true)))
		require.NoError(t, late.Commit(t.Context()))
		runtimetest.Put(t, pool, "a", 3)
		for _, latest := range []bool{false, true} {
			require.Equal(t, listener.Report{Delivered: 2}, runtimetest.DrainAll(t, open(latest)), "where it stands, not where it would start")
		}
		require.ElementsMatch(t, []string{"a1", "a2", "late1", "a3"}, h[false].Names())
		require.ElementsMatch(t, []string{"late1", "a3"}, h[true].Names())
	}
}

// TestListenerStartsWithoutAGap: listeners are registered while events are enqueued and events that all listeners have
// passed are deleted. Each listener gets, per key, all events from some event on, once and in order. That event is at
// the latest the first that committed after the registration. A listener that starts at the latest gets none that
// committed before. The first listener gets everything.
func TestListenerStartsWithoutAGap(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	keys := []string{"a", "b", "c", "d"}
	retention := map[string]outbox.Retention{"test/said": {Delivered: time.Microsecond}}
	all := runtimetest.NewNotes()
	cfg := listener.Config{PollInterval: 10 * time.Millisecond, PruneInterval: -1}
	runtimetest.StartListener(t, runtimetest.ListenTo(t, pool, listener.Spec{Name: "first"}, cfg, all))
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners")

	over := make(chan struct{})
	var writers sync.WaitGroup
	t.Cleanup(writers.Wait)
	end := sync.OnceFunc(func() { close(over) })
	t.Cleanup(end)
	var mu sync.Mutex
	committed := make(map[string]int)
	standing := func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(committed)
	}
	for _, key := range keys {
		writers.Go(func() {
			for n := 1; running(over); n++ {
				tx := pgtest.Begin(t, pool, pgx.TxOptions{})
				_, err := runtimetest.SaidTopic.Enqueue(t.Context(), tx, runtimetest.Said{Key: key, N: n})
				require.NoError(t, err)
				<-time.After(rand.N(3 * time.Millisecond)) // the others overtake this one
				require.NoError(t, tx.Commit(t.Context()))
				mu.Lock()
				committed[key] = n
				mu.Unlock()
			}
		})
	}
	pruned := 0
	writers.Go(func() {
		a := runtimetest.AdminOf(t, pool)
		for running(over) {
			r, err := a.Prune(t.Context(), retention)
			require.NoError(t, err)
			pruned += int(r.Log)
		}
	})

	type arrival struct {
		h             *runtimetest.Notes
		latest        bool
		before, after map[string]int // that had committed before and after it was registered
	}
	var arrivals []arrival
	for i := range 12 {
		a := arrival{h: runtimetest.NewNotes(), latest: i%2 == 0, before: standing()}
		l := runtimetest.ListenTo(t, pool, listener.Spec{Name: fmt.Sprint("new", i), Latest: a.latest, Shards: 1 + i%3}, cfg, a.h)
		runtimetest.StartListener(t, l)
		pgtest.Settles(t, pool, 1+i%3, "SELECT count(*) FROM outbox.listeners WHERE listener = $1", fmt.Sprint("new", i))
		a.after = standing()
		arrivals = append(arrivals, a)
		a.h.Await(t, 5) // and the log continues
	}
	end()
	writers.Wait()
	last := standing()
	finishedAll(t, pool)
	first := starts(t, all, last)
	require.Equal(t, map[string]int{"a": 1, "b": 1, "c": 1, "d": 1}, first)
	for i, a := range arrivals {
		for key, from := range starts(t, a.h, last) {
			// One may have committed before and be counted after.
			require.LessOrEqual(t, from, a.after[key]+2, "listener %d has missed what came after it", i)
			if a.latest {
				require.Greater(t, from, a.before[key], "listener %d got what had been there", i)
			}
		}
	}
	require.Positive(t, pruned)
	t.Logf("%v committed, %d pruned meanwhile", last, pruned)
}

func running(over <-chan struct{}) bool {
	select {
	case <-over:
		return false
	default:
		return true
	}
}

// finishedAll waits until all shards of all listeners have passed the whole log.
func finishedAll(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Settles(t, pool, 0, `SELECT count(*) FROM outbox.listeners
		WHERE in_batch OR running OR high_seq < (SELECT coalesce(max(seq), 0) FROM outbox.log)`)
}

// starts requires that all events of each key from some event to the last were handled in order, and returns the first
// of each key.
func starts(t *testing.T, h *runtimetest.Notes, last map[string]int) map[string]int {
	t.Helper()
	h.Mu.Lock()
	defer h.Mu.Unlock()
	from, to := make(map[string]int), make(map[string]int)
	for _, d := range h.Got {
		key, n := d.Payload.Key, d.Payload.N
		if from[key] == 0 {
			from[key] = n
		} else {
			require.Equal(t, to[key]+1, n, "key %s", key)
		}
		to[key] = n
	}
	require.Equal(t, last, to)
	return from
}

// TestListenerMaintenance: a running listener deletes events that are past their retention and that every listener has
// passed. It keeps events that a listener has not passed, and reports that listener if it lags too much, even if no
// process runs it.
func TestListenerMaintenance(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	topic := runtimetest.SaidTopic
	topic = runtimetest.Altered(topic, func(s *outbox.TopicSpec) { s.Retention = outbox.Retention{Delivered: time.Hour, Dead: 2 * time.Hour} })
	h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
		if d.Payload.Key == "x" {
			return outbox.Permanent(runtimetest.ErrHandler)
		}
		return nil
	}
	log := runtimetest.NewLogSpy()
	cfg := listener.Config{PruneInterval: 10 * time.Millisecond, Logger: log.Logger()}
	l, err := listener.New(pool, listener.Spec{Name: "ears"}, cfg, listener.Handle(topic, h, h.Handle))
	require.NoError(t, err)
	abandoned := runtimetest.ListenTo(t, pool, listener.Spec{Name: "abandoned", MaxLag: time.Minute}, listener.Config{}, runtimetest.NewNotes())
	runtimetest.PutAll(t, pool, "a1", "x1")
	runtimetest.DrainAll(t, abandoned)
	runtimetest.PutAll(t, pool, "a2")
	runtimetest.DrainAll(t, l)
	runtimetest.PutAll(t, pool, "x2")
	runtimetest.DrainAll(t, l)
	pgtest.Execute(t, pool, "UPDATE outbox.log SET created_at = created_at - interval '61 minutes' WHERE payload->>'n' = '1' OR payload->>'key' = 'a'")
	pgtest.Execute(t, pool, "UPDATE outbox.dead_letters SET died_at = died_at - interval '121 minutes' WHERE payload->>'n' = '1'")
	watch := listener.Watch(l)
	stop := runtimetest.StartListener(t, l)
	line := log.Await(t, "listener lags")
	require.Contains(t, line, "listener=abandoned shard=0 lag=1h1m")
	require.Contains(t, line, "max_lag=1m0s")
	pgtest.Receive(t, watch.Maintained, "a prune")
	pgtest.Receive(t, watch.Maintained, "another, which has begun later")
	const left = "SELECT string_agg(concat(payload->>'key', payload->>'n'), ' ' ORDER BY seq) FROM "
	require.Equal(t, "a2 x2", pgtest.Value[string](t, pool, left+"outbox.log"))
	require.Equal(t, "x2", pgtest.Value[string](t, pool, left+"outbox.dead_letters"))
	runtimetest.DrainAll(t, abandoned)
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.log")
	stop()
	require.Equal(t, "x2", pgtest.Value[string](t, pool, left+"outbox.log"))
}
