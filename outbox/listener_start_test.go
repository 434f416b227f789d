package outbox_test

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

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestListenerStarts at the beginning of the log or behind what has committed. What was enqueued before and commits later
// is behind it, and comes.
func TestListenerStarts(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 3} {
		pool := pgtest.Database(t)
		put1(t, pool, "a", 1)
		late := begin(t, pool, pgx.TxOptions{})
		_, err := saidTopic.Untyped().Enqueue(t.Context(), late, said{Key: "late", N: 1})
		require.NoError(t, err)
		put1(t, pool, "a", 2)
		h := map[bool]*notes{false: newNotes(), true: newNotes()}
		open := func(latest bool) *outbox.Listener {
			spec := outbox.ListenerSpec{Name: map[bool]string{false: "earliest", true: "latest"}[latest], Latest: latest, Shards: shards}
			return listenTo(t, pool, spec, outbox.ListenerConfig{}, h[latest])
		}
		require.Equal(t, outbox.DrainReport{Delivered: 2}, drainAll(t, open(false)))
		require.Equal(t, outbox.DrainReport{}, drainAll(t, open(true)))
		require.NoError(t, late.Commit(t.Context()))
		put1(t, pool, "a", 3)
		for _, latest := range []bool{false, true} {
			require.Equal(t, outbox.DrainReport{Delivered: 2}, drainAll(t, open(latest)), "where it stands, not where it would start")
		}
		require.ElementsMatch(t, []string{"a1", "a2", "late1", "a3"}, h[false].names())
		require.ElementsMatch(t, []string{"late1", "a3"}, h[true].names())
	}
}

// TestListenerStartsWithoutAGap: listeners are registered while events are enqueued and those that all have passed are
// deleted. Each gets, of each key, everything from some event on, once and in order: at the latest from what committed
// after it was registered, if it starts behind the latest not from before, and with the first everything.
func TestListenerStartsWithoutAGap(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	keys := []string{"a", "b", "c", "d"}
	retention := map[string]outbox.Retention{"test/said": {Delivered: time.Microsecond}}
	all := newNotes()
	cfg := outbox.ListenerConfig{PollInterval: 10 * time.Millisecond, PruneInterval: -1}
	startListener(t, listenTo(t, pool, outbox.ListenerSpec{Name: "first"}, cfg, all))
	settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners")

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
				tx := begin(t, pool, pgx.TxOptions{})
				_, err := saidTopic.Untyped().Enqueue(t.Context(), tx, said{Key: key, N: n})
				require.NoError(t, err)
				<-time.After(rand.N(3 * time.Millisecond)) // the others overtake it
				require.NoError(t, tx.Commit(t.Context()))
				mu.Lock()
				committed[key] = n
				mu.Unlock()
			}
		})
	}
	pruned := 0
	writers.Go(func() {
		a := adminOf(t, pool)
		for running(over) {
			r, err := a.Prune(t.Context(), retention)
			require.NoError(t, err)
			pruned += int(r.Log)
		}
	})

	type arrival struct {
		h             *notes
		latest        bool
		before, after map[string]int // that had committed before and after it was registered
	}
	var arrivals []arrival
	for i := range 12 {
		a := arrival{h: newNotes(), latest: i%2 == 0, before: standing()}
		l := listenTo(t, pool, outbox.ListenerSpec{Name: fmt.Sprint("new", i), Latest: a.latest, Shards: 1 + i%3}, cfg, a.h)
		startListener(t, l)
		settles(t, pool, 1+i%3, "SELECT count(*) FROM outbox.listeners WHERE listener = $1", fmt.Sprint("new", i))
		a.after = standing()
		arrivals = append(arrivals, a)
		a.h.await(t, 5) // and the log goes on
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

// finishedAll waits until all shards of all listeners are past the whole log.
func finishedAll(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	settles(t, pool, 0, `SELECT count(*) FROM outbox.listeners
		WHERE in_batch OR running OR high_seq < (SELECT coalesce(max(seq), 0) FROM outbox.log)`)
}

// starts demands that of each key everything was handled from some event to the last, in order, and returns the first.
func starts(t *testing.T, h *notes, last map[string]int) map[string]int {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	from, to := make(map[string]int), make(map[string]int)
	for _, d := range h.got {
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

// TestListenerMaintenance: a running listener deletes what is past its retention and every listener has passed, leaves what
// one has not, and reports that one if it lags too much, though nobody runs it.
func TestListenerMaintenance(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	topic := saidTopic
	topic = altered(topic, func(s *outbox.TopicSpec) { s.Retention = outbox.Retention{Delivered: time.Hour, Dead: 2 * time.Hour} })
	h.fail = func(d outbox.Delivery[said]) error {
		if d.Payload.Key == "x" {
			return outbox.Permanent(errHandler)
		}
		return nil
	}
	log := newSpy()
	cfg := outbox.ListenerConfig{PruneInterval: 10 * time.Millisecond, Logger: log.logger()}
	l, err := outbox.NewListener(pool, outbox.ListenerSpec{Name: "ears"}, cfg, outbox.Listen(topic, h, h.handle))
	require.NoError(t, err)
	abandoned := listenTo(t, pool, outbox.ListenerSpec{Name: "abandoned", MaxLag: time.Minute}, outbox.ListenerConfig{}, newNotes())
	putAll(t, pool, "a1", "x1")
	drainAll(t, abandoned)
	putAll(t, pool, "a2")
	drainAll(t, l)
	putAll(t, pool, "x2")
	drainAll(t, l)
	execute(t, pool, "UPDATE outbox.log SET created_at = created_at - interval '61 minutes' WHERE payload->>'n' = '1' OR payload->>'key' = 'a'")
	execute(t, pool, "UPDATE outbox.dead_letters SET died_at = died_at - interval '121 minutes' WHERE payload->>'n' = '1'")
	watch := outbox.WatchListener(l)
	stop := startListener(t, l)
	line := log.await(t, "listener lags")
	require.Contains(t, line, "listener=abandoned shard=0 lag=1h1m")
	require.Contains(t, line, "max_lag=1m0s")
	receive(t, watch.Maintained, "a prune")
	receive(t, watch.Maintained, "another, which has begun later")
	const left = "SELECT string_agg(concat(payload->>'key', payload->>'n'), ' ' ORDER BY seq) FROM "
	require.Equal(t, "a2 x2", value[string](t, pool, left+"outbox.log"))
	require.Equal(t, "x2", value[string](t, pool, left+"outbox.dead_letters"))
	drainAll(t, abandoned)
	settles(t, pool, 1, "SELECT count(*) FROM outbox.log")
	stop()
	require.Equal(t, "x2", value[string](t, pool, left+"outbox.log"))
}
