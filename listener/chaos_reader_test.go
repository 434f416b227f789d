package listener_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// reader delivers what writers have enqueued: the runtime, or a rival that is meant to fail.
type reader struct {
	// drain hears all events in batches, and returns when it has heard all, or some time after ctx has ended.
	drain func(ctx context.Context, batch int, hear func(uuid.UUID)) error
	// run hears until ctx ends; if it is nil, drain is called repeatedly.
	run func(ctx context.Context, batch int, hear func(uuid.UUID)) error
	// shards is how many readers in the order of the log it is composed of; 0 if handlers run concurrently.
	shards int
	// lossy reports that it is meant to fail: writers do not wait for it.
	lossy bool
	// wentOn holds one if a lease had more than one batch.
	wentOn chan struct{}
}

// batchSizes are the batch sizes of readers. Each session takes another.
var batchSizes = []int{1, 2, 3, 7, 20, 100, 1000}

func randomBatch() int { return batchSizes[rand.IntN(len(batchSizes))] }

// hearing is a handler that calls hear for each event.
type hearing struct{ hear func(uuid.UUID) }

func (h hearing) handle(_ context.Context, d outbox.Delivery[runtimetest.Said]) error {
	h.hear(d.ID)
	return nil
}

// handleTx also writes an effect to the database.
func (h hearing) handleTx(ctx context.Context, tx pgx.Tx, d outbox.Delivery[runtimetest.Said]) error {
	if _, err := tx.Exec(ctx, "INSERT INTO effect (id) VALUES ($1)", d.ID); err != nil {
		return err
	}
	h.hear(d.ID)
	return nil
}

// listens returns the runtime in leased mode as a reader. It runs in the given number of concurrent processes, or
// drains if that is 0. Each session is a new listener.
func listens(t testing.TB, pool *pgxpool.Pool, spec listener.Spec, cfg listener.Config, processes int, edits ...listener.Edit) reader {
	wentOn := make(chan struct{}, 1)
	listener := func(batch int, hear func(uuid.UUID)) *listener.Listener {
		cfg := cfg
		cfg.Logger, cfg.BatchSize = runtimetest.DiscardLogger(), batch
		l, err := listener.New(pool, spec, cfg,
			listener.Handle(chaosTopics[false], hearing{hear}, hearing{hear}.handle), listener.Handle(chaosLoose[false], hearing{hear}, hearing{hear}.handle))
		require.NoError(t, err)
		if len(edits) > 0 {
			listener.Mutate(l, edits...)
		}
		listener.WatchContinued(l, wentOn)
		if rand.IntN(2) == 0 {
			listener.LimitLeaseAge(l, time.Second) // so that a busy machine reads ahead, too
		}
		return l
	}
	r := reader{wentOn: wentOn, shards: max(spec.Shards, 1), lossy: len(edits) > 0}
	if spec.Concurrency > 1 {
		r.shards = 0
	}
	r.drain = func(ctx context.Context, batch int, hear func(uuid.UUID)) error {
		return drains(ctx, listener(batch, hear))
	}
	if processes > 0 {
		r.run = func(ctx context.Context, batch int, hear func(uuid.UUID)) error {
			errs := make([]error, processes)
			var running sync.WaitGroup
			for i := range processes {
				l := listener(batch, hear)
				running.Go(func() { errs[i] = l.Run(ctx) })
			}
			running.Wait()
			return errors.Join(errs...)
		}
	}
	return r
}

// listensTx returns the runtime in transactional mode as a reader.
func listensTx(t testing.TB, pool *pgxpool.Pool, name string) reader {
	return reader{shards: 1, drain: func(ctx context.Context, batch int, hear func(uuid.UUID)) error {
		l, err := listener.New(pool, listener.Spec{Name: name}, listener.Config{BatchSize: batch, Logger: runtimetest.DiscardLogger()},
			listener.HandleTx(chaosTopics[false], hearing{hear}, hearing{hear}.handleTx), listener.HandleTx(chaosLoose[false], hearing{hear}, hearing{hear}.handleTx))
		require.NoError(t, err)
		return drains(ctx, l)
	}}
}

func drains(ctx context.Context, l *listener.Listener) error {
	report, err := l.Drain(ctx)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil
	}
	if report.Lost+report.Retried+report.Dead > 0 {
		return errors.Join(err, errors.New("a run without faults has none but delivered events"))
	}
	return err
}

// Rival methods, which remember only the highest seq.
const (
	// readAbove reads on from the highest seq.
	readAbove = "SELECT seq, id FROM outbox.log WHERE seq > $1 ORDER BY seq LIMIT $2"
	// readBelowHorizon waits for every transaction that is older than the oldest open one.
	readBelowHorizon = "SELECT seq, id FROM outbox.log WHERE seq > $1 AND xid < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY seq LIMIT $2"
)

// rival reads by a statement that takes a seq and a limit, and returns seqs and ids.
func rival(pool *pgxpool.Pool, statement string) reader {
	cursor := int64(0)
	return reader{shards: 1, lossy: true, drain: func(ctx context.Context, batch int, hear func(uuid.UUID)) error {
		for ctx.Err() == nil {
			rows, err := pool.Query(context.WithoutCancel(ctx), statement, cursor, batch)
			if err != nil {
				return err
			}
			var id uuid.UUID
			tag, err := pgx.ForEachRow(rows, []any{&cursor, &id}, func() error {
				hear(id)
				return nil
			})
			if err != nil || tag.RowsAffected() == 0 {
				return err
			}
		}
		return nil
	}}
}

// listen makes r hear in sessions of random length until over is closed, and then all that is left. It counts the
// events.
func (c *chaos) listen(r reader, over <-chan struct{}, count *atomic.Int64) ([]uuid.UUID, error) {
	var mu sync.Mutex
	var heard []uuid.UUID
	left, stop := 0, func() {}
	hear := func(id uuid.UUID) {
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, id)
		count.Add(1)
		if left--; left == 0 {
			stop()
		}
		select {
		case c.heard <- struct{}{}:
		default:
		}
	}
	run := r.run
	leases := 200
	if run == nil {
		leases = 20
		run = func(ctx context.Context, batch int, hear func(uuid.UUID)) error {
			for ctx.Err() == nil {
				if err := r.drain(ctx, batch, hear); err != nil {
					return err
				}
				select {
				case <-ctx.Done():
				case <-c.overtook:
				case <-time.After(time.Duration(rand.IntN(15_000)) * time.Microsecond):
				}
			}
			return nil
		}
	}
	longest := min(3000, max(1, int(c.steps)/16)) // so that a short run has sessions with small batches, too
	for !closed(over) {
		ctx, cancel := context.WithCancel(context.Background())
		batch := randomBatch()
		mu.Lock()
		left, stop = 1+rand.IntN(min(leases*batch, longest)), cancel
		mu.Unlock()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			select {
			case <-over:
				cancel()
			case <-ctx.Done():
			}
		}()
		err := run(ctx, batch, hear)
		cancel()
		<-ended
		if err != nil {
			return heard, err
		}
	}
	return heard, r.drain(context.Background(), randomBatch(), hear)
}

func closed(over <-chan struct{}) bool {
	select {
	case <-over:
		return true
	default:
		return false
	}
}
