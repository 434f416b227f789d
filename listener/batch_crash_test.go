package listener_test

import (
	"encoding/json"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// sizesOf returns how many events the calls of a child have had, to its end.
func sizesOf(t *testing.T, c *runtimetest.Child) (sizes []int) {
	t.Helper()
	for line := range c.Lines {
		var said struct {
			Msg  string `json:"msg"`
			Size int    `json:"size"`
		}
		if !strings.HasPrefix(line, "{") {
			continue
		}
		require.NoError(t, json.Unmarshal([]byte(line), &said))
		if said.Msg == "batch" {
			sizes = append(sizes, said.Size)
		}
	}
	return sizes
}

// TestListenerBatchThatKillsItsProcess: after each crash the same events are tried in smaller batches, until the one
// that ends every process is alone. Only its attempts are counted. Afterwards batches are full again.
func TestListenerBatchThatKillsItsProcess(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		runtimetest.MakeEffects(t, pool)
		o := listenerOrders{
			Transactional: transactional, Lease: time.Minute, Poll: 50 * time.Millisecond, Attempts: 2,
			Batch: outbox.Batch{Size: 16}, BatchSize: 16,
		}
		c := runtimetest.NewCrowd("a", "b", "c")
		c.Enqueue(t, pool, 21)
		runtimetest.Put(t, pool, "poison", 1)
		c.Enqueue(t, pool, 42)
		var last []int // the size of the batch that each child has died of
		for pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters") == 0 {
			child := newListenerChild(t, pool, o)
			done := make(chan []int, 1)
			go func() { done <- sizesOf(t, child) }()
			if len(last) == 6 { // this one lives
				pgtest.Settles(t, pool, 63, "SELECT count(DISTINCT event_id) FROM effects")
				pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.dead_letters")
				child.Signal(t, syscall.SIGTERM)
				sizes := pgtest.Receive(t, done, "the end of the child")
				require.Equal(t, 16, slices.Max(sizes), "%v", sizes)
				break
			}
			sizes := pgtest.Receive(t, done, "the end of the child")
			require.ErrorContains(t, child.Wait(), "exit status 7")
			last = append(last, sizes[len(sizes)-1])
			expireLeases(t, pool)
		}
		require.Equal(t, []int{16, 8, 4, 2, 1, 1}, last)
		require.Equal(t, "poison 2", pgtest.Value[string](t, pool, "SELECT string_agg(concat(payload->>'key', ' ', attempts), ', ') FROM outbox.dead_letters"))
		require.Equal(t, 1, pgtest.Value[int](t, pool, "SELECT max(attempt) FROM effects"))
		require.Zero(t, pgtest.Value[int](t, pool, runtimetest.Disorder))
		require.Zero(t, pgtest.Value[int](t, pool, "SELECT max(trying) FROM outbox.listeners"))
		if transactional {
			onceEach(t, pool, 1)
		}
	})
}

// TestListenerBatchAfterACrash: what a killed process had is handled in batches of half the size, not one by one.
func TestListenerBatchAfterACrash(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		putMany(t, pool, 40)
		g := newGathering(pool, nil)
		spec := listener.Spec{Batch: outbox.Batch{Size: 10}}
		cfg := listener.Config{BatchSize: 10}
		r, err := gather(t, pool, transactional, spec, cfg, g).DrainUpTo(t.Context(), outbox.DrainLimit{Events: 10})
		require.NoError(t, err)
		require.Equal(t, 10, r.Delivered)
		pgtest.Execute(t, pool, `UPDATE outbox.listeners SET running = true, lease_by = gen_random_uuid(), lease_id = gen_random_uuid(),
			lease_until = statement_timestamp() - interval '1 s'`)
		require.Equal(t, listener.Report{Delivered: 30}, runtimetest.DrainAll(t, gather(t, pool, transactional, spec, cfg, g)))
		require.Equal(t, []int{10, 5, 5, 10, 10}, g.sizes())
		onceEach(t, pool, 0)
	})
}
