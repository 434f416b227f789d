package listener_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
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
	"github.com/outboxgen/outboxgen/publish"
)

type said = outbox.Delivery[runtimetest.Said]

// gathering is a handler of batches. It writes the effect of every event, in the transaction if it has one, and then
// returns what ends says.
type gathering struct {
	pool   *pgxpool.Pool
	silent bool                                                  // writes no effects
	ends   func(ctx context.Context, tx pgx.Tx, ds []said) error // nil means success

	mu    sync.Mutex
	calls [][]said
	told  chan int // the sizes of calls, as long as there is room
}

func newGathering(pool *pgxpool.Pool, ends func(ctx context.Context, tx pgx.Tx, ds []said) error) *gathering {
	return &gathering{pool: pool, ends: ends, told: make(chan int, 10_000)}
}

func (g *gathering) handle(ctx context.Context, ds []said) error { return g.handleTx(ctx, nil, ds) }

func (g *gathering) handleTx(ctx context.Context, tx pgx.Tx, ds []said) error {
	g.mu.Lock()
	g.calls = append(g.calls, slices.Clone(ds))
	g.mu.Unlock()
	g.told <- len(ds)
	var err error
	if g.ends != nil {
		err = g.ends(ctx, tx, ds)
	}
	failed := &outbox.BatchError{}
	named := func(d said) bool { return failed.Of(d.Event) != nil }
	if errors.As(err, &failed); err != nil && !slices.ContainsFunc(ds, named) {
		return err
	}
	b := &pgx.Batch{}
	for _, d := range ds {
		if !named(d) && !g.silent {
			b.Queue(runtimetest.EffectSQL, d.ID, d.Payload.Key, d.Payload.N, d.Attempt)
		}
	}
	send := g.pool.SendBatch
	if tx != nil {
		send = tx.SendBatch
	}
	return errors.Join(err, send(ctx, b).Close())
}

// sizes returns how many events each call had.
func (g *gathering) sizes() (n []int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, call := range g.calls {
		n = append(n, len(call))
	}
	return n
}

// text lists the calls, such as "a1 b1, a2".
func (g *gathering) text() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var calls []string
	for _, call := range g.calls {
		calls = append(calls, namesOf(call))
	}
	return strings.Join(calls, ", ")
}

func namesOf(ds []said) string {
	var names []string
	for _, d := range ds {
		names = append(names, fmt.Sprint(d.Payload.Key, d.Payload.N))
	}
	return strings.Join(names, " ")
}

// gather returns a listener "ears" of SaidTopic and, in leased mode, LooseTopic.
func gather(
	t testing.TB, pool *pgxpool.Pool, transactional bool, spec listener.Spec, cfg listener.Config, g *gathering,
) *listener.Listener {
	t.Helper()
	runtimetest.MakeEffects(t, pool)
	spec.Name = "ears"
	if cfg.Logger == nil {
		cfg.Logger = runtimetest.DiscardLogger()
	}
	handlers := []listener.Handler{
		listener.HandleBatch(runtimetest.SaidTopic, g, g.handle), listener.HandleBatch(runtimetest.LooseTopic, g, g.handle),
	}
	if transactional {
		handlers = []listener.Handler{
			listener.HandleTxBatch(runtimetest.SaidTopic, g, g.handleTx),
			listener.HandleTxBatch(runtimetest.LooseTopic, g, g.handleTx),
		}
	}
	l, err := listener.New(pool, runtimetest.WithLateRetries(spec), cfg, handlers...)
	require.NoError(t, err)
	return l
}

// putMany commits events of n keys, one each and in one transaction: k0, k1 and so on, with number 1.
func putMany(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	ps := make([]runtimetest.Said, n)
	for i := range ps {
		ps[i] = runtimetest.Said{Key: fmt.Sprintf("k%d-", i), N: 1}
	}
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := runtimetest.SaidTopic.EnqueueMany(t.Context(), tx, ps)
		require.NoError(t, err)
	})
}

// has returns an error if one of the events has one of the names.
func has(names ...string) func(context.Context, pgx.Tx, []said) error {
	return func(_ context.Context, _ pgx.Tx, ds []said) error {
		for _, d := range ds {
			if slices.Contains(names, fmt.Sprint(d.Payload.Key, d.Payload.N)) {
				return runtimetest.ErrHandler
			}
		}
		return nil
	}
}

// onceEach requires that every event but n of the log has exactly one effect, and that those of a key are in order.
func onceEach(t testing.TB, pool *pgxpool.Pool, but int) {
	t.Helper()
	total := pgtest.Count(t, pool, "SELECT count(*) FROM outbox.log") - but
	require.Equal(t, total, pgtest.Count(t, pool, "SELECT count(*) FROM effects"))
	require.Equal(t, total, pgtest.Count(t, pool, "SELECT count(DISTINCT event_id) FROM effects"))
	require.Zero(t, pgtest.Value[int](t, pool, runtimetest.Disorder))
}

// TestListenerBatches: a call gets consecutive events of one topic, up to the size.
func TestListenerBatches(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		runtimetest.PutAll(t, pool, "a1", "a2", "b1", "a3", "c1")
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			_, err := runtimetest.LooseTopic.Enqueue(t.Context(), tx, runtimetest.Said{Key: "x", N: 1})
			require.NoError(t, err)
		})
		runtimetest.PutAll(t, pool, "d1", "d2", "d3")
		g := newGathering(pool, nil)
		l := gather(t, pool, transactional, listener.Spec{Batch: outbox.Batch{Size: 3}}, listener.Config{}, g)
		require.Equal(t, listener.Report{Delivered: 9}, runtimetest.DrainAll(t, l))
		require.Equal(t, "a1 a2 b1, a3 c1, x1, d1 d2 d3", g.text())
		onceEach(t, pool, 0)
	})
}

// TestListenerBatchOfSeveralWorkers: the events of a key are in one call at a time.
func TestListenerBatchOfSeveralWorkers(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	runtimetest.PutAll(t, pool, "a1", "b1", "c1", "a2", "d1", "b2", "e1", "f1")
	begun, free := make(chan string, 8), make(chan struct{})
	g := newGathering(pool, func(_ context.Context, _ pgx.Tx, ds []said) error {
		begun <- namesOf(ds)
		<-free
		return nil
	})
	l := gather(t, pool, false, listener.Spec{Batch: outbox.Batch{Size: 2}, Concurrency: 3}, listener.Config{}, g)
	stop := runtimetest.StartListener(t, l)
	calls := []string{pgtest.Receive(t, begun, "a"), pgtest.Receive(t, begun, "a"), pgtest.Receive(t, begun, "a")}
	slices.Sort(calls)
	require.Equal(t, []string{"a1 b1", "c1 d1", "e1 f1"}, calls)
	close(free)
	pgtest.Settles(t, pool, 8, "SELECT count(*) FROM effects")
	stop()
	require.Contains(t, g.text(), "a2 b2")
	onceEach(t, pool, 0)
}

// TestListenerBatchError: the events that the handler names have failed, each with its own error and marks. The others
// are delivered, and so are later ones of other keys if keys are parked.
func TestListenerBatchError(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, park := range []bool{false, true} {
		t.Run(fmt.Sprintf("park %t", park), func(t *testing.T) {
			t.Parallel()
			runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
				pool := pgtest.Database(t)
				runtimetest.PutAll(t, pool, "a1", "b1", "a2", "c1", "d1", "a3", "d2", "b2")
				g := newGathering(pool, func(_ context.Context, _ pgx.Tx, ds []said) error {
					var failed outbox.BatchError
					for _, d := range ds {
						switch name := fmt.Sprint(d.Payload.Key, d.Payload.N); {
						case name == "a1" && d.Attempt == 1:
							failed.Fail(d.Event, runtimetest.ErrHandler)
						case name == "c1":
							failed.Fail(d.Event, outbox.Permanent(errors.New("never")))
						}
					}
					if failed.Err() == nil {
						return nil
					}
					return fmt.Errorf("wrapped: %w", failed.Err())
				})
				spec := listener.Spec{Batch: outbox.Batch{Size: 4}, ParkKeys: park}
				l := gather(t, pool, transactional, spec, listener.Config{}, g)
				want, calls, then := listener.Report{Delivered: 2, Dead: 1, Retried: 1}, "a1 b1 a2 c1", "a1, d1 a3 d2 b2"
				rest := listener.Report{Delivered: 5}
				if park {
					want.Delivered, rest.Delivered = 5, 2
					calls, then = "a1 b1 a2 c1, d1 d2 b2", "a1, a3"
				}
				require.Equal(t, want, runtimetest.DrainAll(t, l))
				require.Equal(t, calls, g.text())
				require.Equal(t, "c1 never 1", pgtest.Value[string](t, pool,
					"SELECT concat(payload->>'key', payload->>'n', ' ', error, ' ', attempts) FROM outbox.dead_letters"))
				runtimetest.RetryNow(t, pool)
				require.Equal(t, rest, runtimetest.DrainAll(t, l))
				require.Equal(t, calls+", "+then, g.text())
				total := pgtest.Count(t, pool, "SELECT count(DISTINCT event_id) FROM effects")
				require.Equal(t, 7, total)
				require.Equal(t, 7, pgtest.Count(t, pool, "SELECT count(*) FROM effects"))
			})
		})
	}
}

// TestListenerSearchesAPoisonByHalves: whatever the place of the event that makes calls fail, and however it does, it
// is found in few calls. The others are delivered at their first attempt, once.
func TestListenerSearchesAPoisonByHalves(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const n = 500
	for name, ends := range map[string]func(context.Context, pgx.Tx) error{
		"error": func(context.Context, pgx.Tx) error { return runtimetest.ErrHandler },
		"panic": func(context.Context, pgx.Tx) error { panic("oh") },
		"Goexit": func(context.Context, pgx.Tx) error {
			runtime.Goexit()
			return nil
		},
		"permanent": func(context.Context, pgx.Tx) error { return outbox.Permanent(runtimetest.ErrHandler) },
		"nobody is named": func(context.Context, pgx.Tx) error {
			var failed outbox.BatchError
			failed.Fail(outbox.Event{}, runtimetest.ErrHandler)
			return failed.Err()
		},
		"SQL error ignored": func(ctx context.Context, tx pgx.Tx) error {
			if tx == nil {
				return runtimetest.ErrHandler
			}
			_, _ = tx.Exec(ctx, "SELECT 1/0")
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
				pool := pgtest.Database(t)
				for _, at := range []int{0, 1, 249, 250, 333, n - 1} {
					pgtest.Execute(t, pool, "DROP TABLE IF EXISTS effects; TRUNCATE outbox.log, outbox.listeners, outbox.parked, outbox.dead_letters")
					putMany(t, pool, n)
					poison := fmt.Sprintf("k%d-", at)
					g := newGathering(pool, func(ctx context.Context, tx pgx.Tx, ds []said) error {
						if slices.ContainsFunc(ds, func(d said) bool { return d.Payload.Key == poison }) {
							return ends(ctx, tx)
						}
						return nil
					})
					spec := listener.Spec{ParkKeys: true, Batch: outbox.Batch{Size: n}}
					l := gather(t, pool, transactional, spec, listener.Config{}, g)
					want := listener.Report{Delivered: n - 1, Retried: 1}
					if name == "permanent" {
						want = listener.Report{Delivered: n - 1, Dead: 1}
					}
					require.Equal(t, want, runtimetest.DrainAll(t, l), "poison %d, calls %v", at, g.sizes())
					require.LessOrEqual(t, len(g.sizes()), 17, "poison %d, calls %v", at, g.sizes())
					onceEach(t, pool, 1)
					require.Equal(t, 1, pgtest.Value[int](t, pool, "SELECT max(attempt) FROM effects"))
				}
			})
		})
	}
}

// TestListenerSearchesSeveralPoisons: the others are delivered at their first attempt. Without parking, the first
// poison blocks those behind it and is tried alone from then on.
func TestListenerSearchesSeveralPoisons(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		for park, want := range map[bool]listener.Report{true: {Delivered: 97, Retried: 3}, false: {Delivered: 10, Retried: 1}} {
			pool := pgtest.Database(t)
			putMany(t, pool, 100)
			g := newGathering(pool, has("k10-1", "k11-1", "k77-1"))
			spec := listener.Spec{ParkKeys: park, Batch: outbox.Batch{Size: 100}}
			l := gather(t, pool, transactional, spec, listener.Config{}, g)
			require.Equal(t, want, runtimetest.DrainAll(t, l), "%v", g.sizes())
			onceEach(t, pool, 100-want.Delivered)
			require.LessOrEqual(t, len(g.sizes()), 3*14)
			before := len(g.sizes())
			runtimetest.RetryNow(t, pool)
			require.Equal(t, listener.Report{Retried: want.Retried}, runtimetest.DrainAll(t, l))
			require.Equal(t, 1, slices.Min(g.sizes()[before:]))
			require.LessOrEqual(t, slices.Max(g.sizes()[before:]), 3, "only what has failed before")
		}
	})
}

// TestListenerBatchesDoNotSearchAnOutage: if every event fails, few calls are made. If the error says that the handler
// is unavailable, there is one, and no attempt is charged.
func TestListenerBatchesDoNotSearchAnOutage(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		for name, err := range map[string]error{
			"failed": runtimetest.ErrHandler, "unavailable": outbox.Unavailable(runtimetest.ErrHandler),
		} {
			pool := pgtest.Database(t)
			putMany(t, pool, 300)
			g := newGathering(pool, func(context.Context, pgx.Tx, []said) error { return err })
			spec := listener.Spec{ParkKeys: true, Batch: outbox.Batch{Size: 300}}
			l := gather(t, pool, transactional, spec, listener.Config{Breaker: outbox.Breaker{FirstPause: time.Hour, MaxPause: time.Hour}}, g)
			r := runtimetest.DrainAll(t, l)
			if name == "failed" {
				require.Equal(t, listener.Report{Retried: 300}, r)
				require.LessOrEqual(t, len(g.sizes()), 40)
				require.Equal(t, 1, pgtest.Value[int](t, pool, "SELECT max(attempts) FROM outbox.parked"))
			} else {
				require.Zero(t, r.Retried)
				require.Equal(t, []int{300}, g.sizes())
				require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.parked WHERE attempts > 0"))
			}
			require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM effects"))
		}
	})
}

// TestListenerBatchOrder: with failures of any kind, several keys in a batch, two processes and a change of holders,
// the events of a key are handled in order, and none is lost or handled twice.
func TestListenerBatchOrder(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, park := range []bool{false, true} {
		t.Run(fmt.Sprintf("park %t", park), func(t *testing.T) {
			t.Parallel()
			runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
				pool := pgtest.Database(t)
				c := runtimetest.NewCrowd("a", "b", "c", "d", "e", "f", "g")
				fails := func(_ context.Context, _ pgx.Tx, ds []said) error {
					var failed outbox.BatchError
					bad := make(map[string]bool) // what is behind a failed event fails with it
					for _, d := range ds {
						if d.Attempt == 1 && d.Payload.N%7 == 3 {
							if d.Payload.N%2 == 0 {
								return runtimetest.ErrHandler
							}
							bad[d.Payload.Key] = true
						}
						if bad[d.Payload.Key] {
							failed.Fail(d.Event, runtimetest.ErrHandler)
						}
					}
					return failed.Err()
				}
				spec := listener.Spec{
					ParkKeys: park, Shards: 3, Batch: outbox.Batch{Size: 8, Wait: 20 * time.Millisecond}, Retry: soon(50),
				}
				if !transactional {
					spec.Concurrency = 2
				}
				cfg := listener.Config{BatchSize: 20, PollInterval: 20 * time.Millisecond}
				var stops []func()
				for range 2 {
					stops = append(stops, runtimetest.StartListener(t, gather(t, pool, transactional, spec, cfg, newGathering(pool, fails))))
				}
				for i := range 15 {
					c.Enqueue(t, pool, 40)
					if i%5 == 4 {
						stops[0]()
						stops = append(stops[1:], runtimetest.StartListener(t, gather(t, pool, transactional, spec, cfg, newGathering(pool, fails))))
					}
				}
				pgtest.Settles(t, pool, 600, "SELECT count(DISTINCT event_id) FROM effects")
				for _, stop := range stops {
					stop()
				}
				onceEach(t, pool, 0)
			})
		})
	}
}

// TestListenerBatchPayloads: an event that cannot be decoded fails alone, in its turn.
func TestListenerBatchPayloads(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		runtimetest.PutAll(t, pool, "a1", "b1", "b2", "c1", "c2")
		pgtest.Execute(t, pool, `UPDATE outbox.log SET payload = '{"key": 7}' WHERE payload->>'key' IN ('a', 'b') AND payload->>'n' = '1'`)
		g := newGathering(pool, nil)
		l := gather(t, pool, transactional, listener.Spec{Batch: outbox.Batch{Size: 10}}, listener.Config{}, g)
		require.Equal(t, listener.Report{Delivered: 3, Dead: 2}, runtimetest.DrainAll(t, l))
		require.Equal(t, "b2 c1 c2", g.text())
		require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters WHERE error LIKE 'decode payload%'"))
	})
}

// TestListenerBatchIsSeenOnce: a middleware wraps a call once, with its first event and a context that the handler
// gets. An observer is told of the call with all events, and of each error.
func TestListenerBatchIsSeenOnce(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	type mark struct{}
	pool := pgtest.Database(t)
	runtimetest.PutAll(t, pool, "a1", "b1", "c1")
	var wrapped, started, finished []string
	g := newGathering(pool, func(ctx context.Context, _ pgx.Tx, ds []said) error {
		require.Equal(t, ds[0].ID, ctx.Value(mark{}))
		var failed outbox.BatchError
		failed.Fail(ds[1].Event, outbox.Permanent(runtimetest.ErrHandler))
		return failed.Err()
	})
	cfg := listener.Config{
		Middleware: []outbox.Middleware{func(ctx context.Context, e outbox.Event, next func(context.Context) error) error {
			wrapped = append(wrapped, e.PartitionKey)
			return next(context.WithValue(ctx, mark{}, e.ID))
		}},
		Observer: &outbox.Observer{
			Started: func(_ context.Context, _ outbox.Runner, es []outbox.Event) {
				started = append(started, fmt.Sprint(len(es)))
			},
			Finished: func(_ context.Context, _ outbox.Runner, es []outbox.Event, errs []error, _ time.Duration) {
				finished = append(finished, fmt.Sprint(len(es), errs))
			},
		},
	}
	l := gather(t, pool, false, listener.Spec{Batch: outbox.Batch{Size: 3}}, cfg, g)
	require.Equal(t, listener.Report{Delivered: 2, Dead: 1}, runtimetest.DrainAll(t, l))
	require.Equal(t, []string{"a"}, wrapped)
	require.Equal(t, []string{"3"}, started)
	require.Equal(t, []string{"3 [<nil> " + runtimetest.ErrHandler.Error() + " <nil>]"}, finished)
}

// TestListenerBatchWaits: a batch waits for more events until it is full, or its first event has waited long enough. No
// transaction is open and no lease held meanwhile.
func TestListenerBatchWaits(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		g := newGathering(pool, nil)
		const wait = 2 * time.Second
		l := gather(t, pool, transactional, listener.Spec{Batch: outbox.Batch{Size: 4, Wait: wait}}, listener.Config{}, g)
		filling := make(chan struct{}, 1)
		listener.WatchFilling(l, filling)
		runtimetest.PutAll(t, pool, "a1")
		stop := runtimetest.StartListener(t, l)
		began := time.Now()
		pgtest.Receive(t, filling, "a shard that waits")
		for i := range 3 {
			runtimetest.PutAll(t, pool, fmt.Sprintf("b%d", i+1))
			require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.listeners WHERE running"))
		}
		require.Equal(t, 4, pgtest.Receive(t, g.told, "a full batch"))
		require.Less(t, time.Since(began), wait)
		runtimetest.PutAll(t, pool, "c1", "c2", "c3", "c4", "c5", "c6")
		put := time.Now()
		require.Equal(t, 4, pgtest.Receive(t, g.told, "a full batch"))
		pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE NOT running AND NOT in_batch") // the rest was cut off
		require.Equal(t, 2, pgtest.Receive(t, g.told, "what has waited"))
		require.GreaterOrEqual(t, time.Since(put), wait-100*time.Millisecond)
		pgtest.Settles(t, pool, 10, "SELECT count(*) FROM effects")
		stop()
		onceEach(t, pool, 0)
	})
}

// TestListenerBatchIsFilledAcrossWindows: what is left of a window is handled together with what has come since.
func TestListenerBatchIsFilledAcrossWindows(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		once := sync.OnceFunc(func() { putMany(t, pool, 2) })
		g := newGathering(pool, func(context.Context, pgx.Tx, []said) error {
			once()
			return nil
		})
		spec := listener.Spec{Batch: outbox.Batch{Size: 4, Wait: time.Hour}}
		l := gather(t, pool, transactional, spec, listener.Config{BatchSize: 8}, g)
		putMany(t, pool, 6)
		stop := runtimetest.StartListener(t, l)
		require.Equal(t, 4, pgtest.Receive(t, g.told, "a full batch"))
		require.Equal(t, 4, pgtest.Receive(t, g.told, "the rest of the window, and what has come since"))
		pgtest.Settles(t, pool, 8, "SELECT count(*) FROM effects")
		stop()
		onceEach(t, pool, 0)
	})
}

// startBeforeLateCommits starts a listener with batches of four, and returns when it has handled four of six events. Five that
// stand before them are not committed.
func startBeforeLateCommits(t *testing.T, transactional bool) (pool *pgxpool.Pool, late pgx.Tx, g *gathering, stop func()) {
	t.Helper()
	pool = pgtest.Database(t)
	late = pgtest.Begin(t, pool, pgx.TxOptions{})
	for n := range 5 {
		_, err := runtimetest.SaidTopic.Enqueue(t.Context(), late, runtimetest.Said{Key: "late", N: n + 1})
		require.NoError(t, err)
	}
	putMany(t, pool, 6)
	g = newGathering(pool, nil)
	spec := listener.Spec{Batch: outbox.Batch{Size: 4, Wait: 200 * time.Millisecond}}
	cfg := listener.Config{PollInterval: 20 * time.Millisecond}
	stop = runtimetest.StartListener(t, gather(t, pool, transactional, spec, cfg, g))
	require.Equal(t, 4, pgtest.Receive(t, g.told, "a full batch"))
	return pool, late, g, stop
}

// TestListenerBatchWithLateCommits: a window that still has late commits is not cut, so nothing is lost or handled twice.
func TestListenerBatchWithLateCommits(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool, late, _, stop := startBeforeLateCommits(t, transactional)
		require.NoError(t, late.Commit(t.Context()))
		pgtest.Settles(t, pool, 11, "SELECT count(DISTINCT event_id) FROM effects")
		runtimetest.Put(t, pool, "last", 1)
		pgtest.Settles(t, pool, 12, "SELECT count(DISTINCT event_id) FROM effects")
		stop()
		onceEach(t, pool, 0)
	})
}

// TestListenerBatchOfLateCommits: a look for more events does not see what was committed late, behind the cursor. So this
// does not wait to fill a batch, or it would wait until something else is enqueued.
func TestListenerBatchOfLateCommits(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool, late, g, stop := startBeforeLateCommits(t, transactional)
		require.Equal(t, 2, pgtest.Receive(t, g.told, "what has waited"))
		require.NoError(t, late.Commit(t.Context()))
		require.Equal(t, 4, pgtest.Receive(t, g.told, "a full batch of late commits"))
		require.Equal(t, 1, pgtest.Receive(t, g.told, "the last of them"))
		pgtest.Settles(t, pool, 11, "SELECT count(*) FROM effects")
		stop()
		onceEach(t, pool, 0)
	})
}

// TestListenerBatchesAcrossAChangeOfShards: the window at which the shards stop is not cut, so what is left of it is not
// lost.
func TestListenerBatchesAcrossAChangeOfShards(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		c := runtimetest.NewCrowd("a", "b", "c", "d", "e", "f")
		spec := listener.Spec{Batch: outbox.Batch{Size: 4, Wait: 20 * time.Millisecond}}
		cfg := listener.Config{PollInterval: 20 * time.Millisecond}
		total := 0
		for round := range 8 {
			c.Enqueue(t, pool, 43)
			total += 43
			spec.Shards = 1 + round%3
			stop := runtimetest.StartListener(t, gather(t, pool, transactional, spec, cfg, newGathering(pool, nil)))
			pgtest.Settles(t, pool, spec.Shards, "SELECT count(*) FROM outbox.listeners WHERE shards = $1", spec.Shards)
			pgtest.Settles(t, pool, total, "SELECT count(DISTINCT event_id) FROM effects")
			stop()
		}
		onceEach(t, pool, 0)
	})
}

// TestListenerStopsWhileABatchWaits: Run returns at once, and the next process has the events.
func TestListenerStopsWhileABatchWaits(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		g := newGathering(pool, nil)
		spec := listener.Spec{Batch: outbox.Batch{Size: 4, Wait: time.Hour}}
		log := runtimetest.NewLogSpy()
		l := gather(t, pool, transactional, spec, listener.Config{Logger: log.Logger()}, g)
		filling := make(chan struct{}, 1)
		listener.WatchFilling(l, filling)
		runtimetest.PutAll(t, pool, "a1", "a2")
		stop := runtimetest.StartListener(t, l)
		pgtest.Receive(t, filling, "a shard that waits")
		began := time.Now()
		stop()
		require.Less(t, time.Since(began), 5*time.Second)
		require.Empty(t, g.sizes())
		require.Equal(t, listener.Report{Delivered: 2}, runtimetest.DrainAll(t, gather(t, pool, transactional, spec, listener.Config{}, g)), "a drain does not wait")
		require.Equal(t, []int{2}, g.sizes())
	})
}

// TestListenerBatchDrainsUpTo: a bound of a drain counts events.
func TestListenerBatchDrainsUpTo(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		putMany(t, pool, 10)
		g := newGathering(pool, has("k1-1"))
		l := gather(t, pool, transactional, listener.Spec{ParkKeys: true, Batch: outbox.Batch{Size: 4}}, listener.Config{}, g)
		r, err := l.DrainUpTo(t.Context(), outbox.DrainLimit{Events: 6})
		require.NoError(t, err)
		require.Equal(t, listener.Report{Delivered: 5, Retried: 1, Ended: outbox.EndEvents}, r)
		onceEach(t, pool, 5)
	})
}

// TestListenerBatchCutShort: when ctx ends in the middle of a search, no more calls are made, and no event is charged.
func TestListenerBatchCutShort(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		putMany(t, pool, 16)
		ctx, cancel := context.WithCancel(t.Context())
		g := newGathering(pool, func(_ context.Context, _ pgx.Tx, ds []said) error {
			if len(ds) == 4 {
				cancel()
			}
			return has("k1-1")(ctx, nil, ds)
		})
		spec := listener.Spec{Batch: outbox.Batch{Size: 16}}
		require.NoError(t, gather(t, pool, transactional, spec, listener.Config{}, g).Run(ctx))
		require.Equal(t, []int{16, 8, 4}, g.sizes())
		g = newGathering(pool, nil)
		require.Equal(t, listener.Report{Delivered: 16}, runtimetest.DrainAll(t, gather(t, pool, transactional, spec, listener.Config{}, g)))
		require.Equal(t, []int{16}, g.sizes())
		require.Equal(t, 1, g.calls[0][0].Attempt)
	})
}

// TestListenerBatchesThatBreakTheirTransaction: the event that makes the commit fail, or ends the session, is found by
// halves over several leases.
func TestListenerBatchesThatBreakTheirTransaction(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, sql := range map[string]string{
		"at the commit": "INSERT INTO deferred VALUES (1)", "at once": "SELECT pg_terminate_backend(pg_backend_pid())",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			pgtest.Execute(t, pool, "CREATE TABLE deferred (n int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO deferred VALUES (1)")
			putMany(t, pool, 64)
			g := newGathering(pool, func(ctx context.Context, tx pgx.Tx, ds []said) error {
				if has("k37-1")(ctx, tx, ds) == nil {
					return nil
				}
				_, err := tx.Exec(ctx, sql)
				return err
			})
			l := gather(t, pool, true, listener.Spec{Batch: outbox.Batch{Size: 32}, Retry: soon(1)}, listener.Config{}, g)
			listener.LimitPauses(l, time.Millisecond)
			stop := runtimetest.StartListener(t, l)
			pgtest.Settles(t, pool, 63, "SELECT count(*) FROM effects")
			pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.dead_letters")
			stop()
			require.LessOrEqual(t, len(g.sizes()), 24, "%v", g.sizes())
			onceEach(t, pool, 1)
		})
	}
}

func TestListenerRefusesBatches(t *testing.T) {
	t.Parallel()
	h, g := runtimetest.NewNotes(), newGathering(nil, nil)
	one := listener.Handle(runtimetest.SaidTopic, h, h.Handle)
	many := listener.HandleBatch(runtimetest.SaidTopic, g, g.handle)
	var none func(context.Context, []said) error
	var noneTx func(context.Context, pgx.Tx, []said) error
	sized := listener.Spec{Batch: outbox.Batch{Size: 10}}
	for name, c := range map[string]struct {
		spec    listener.Spec
		cfg     listener.Config
		handler listener.Handler
		want    string
	}{
		"single":      {spec: sized, handler: one, want: "topic test/said: its handler gets one event, and Spec.Batch is set: use HandleBatch or HandleTxBatch"},
		"no size":     {handler: many, want: "topic test/said: its handler gets batches, and Spec.Batch is not set: set Size, or use Handle or HandleTx"},
		"negative":    {spec: listener.Spec{Batch: outbox.Batch{Size: -1}}, handler: many, want: "field Batch: Size -1 is not between 1 and 10000"},
		"large":       {spec: listener.Spec{Batch: outbox.Batch{Size: 10_001}}, handler: many, want: "field Batch: Size 10001 is not between 1 and 10000"},
		"wait":        {spec: listener.Spec{Batch: outbox.Batch{Size: 1, Wait: -1}}, handler: many, want: "field Batch: Wait -1ns is negative"},
		"only wait":   {spec: listener.Spec{Batch: outbox.Batch{Wait: 1}}, handler: many, want: "field Batch: Wait is set without Size"},
		"small reads": {spec: sized, cfg: listener.Config{BatchSize: 9}, handler: many, want: "field BatchSize 9 is less than the 10 events of Spec.Batch"},
		"no method":   {spec: sized, handler: listener.HandleBatch(runtimetest.SaidTopic, g, none), want: "topic test/said: no handlers given (nil)"},
		"no value":    {spec: sized, handler: listener.HandleTxBatch(runtimetest.SaidTopic, nil, noneTx), want: "topic test/said: no handlers given (nil)"},
		"publishes": {
			spec: sized, cfg: listener.Config{Publishers: map[string]publish.Publisher{"kafka": runtimetest.NewBroker()}},
			handler: listener.Publish(runtimetest.SaidTopic, publish.Publication{Broker: "kafka", Destination: "x"}),
			want:    "topic test/said: it publishes, and publishers have batches of their own: leave Spec.Batch out",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.spec.Name = "ears"
			_, err := listener.New(runtimetest.Unconnected(t), c.spec, c.cfg, c.handler)
			require.EqualError(t, err, "new listener: "+c.want)
		})
	}
	l, err := listener.New(runtimetest.Unconnected(t), listener.Spec{Name: "ears", Batch: outbox.Batch{Size: 500}}, listener.Config{}, many)
	require.NoError(t, err)
	require.Equal(t, 500, listener.ConfigOf(l).BatchSize)
}
