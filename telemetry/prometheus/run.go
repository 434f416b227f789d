package prometheus

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// unscraped is after how many intervals without a scrape a process lets another one read the gauges, and for how long
// at least.
const (
	unscraped        = 10
	unscrapedAtLeast = 5 * time.Minute
)

// readTimeout bounds a reading, unless Interval is longer.
const readTimeout = 15 * time.Second

// closeTimeout bounds what is said to the server when the lock's connection is closed.
const closeTimeout = 5 * time.Second

var (
	errRunning = errors.New("the collector is running already")
	errPooler  = errors.New("the advisory lock is on another session than before: the pool goes through a pooler in " +
		"transaction mode; set Config.LockPool")
)

// Run reads the gauges while this process holds the advisory lock, until ctx ends, and blocks until then. Without
// Config.Pool it does nothing but wait. Errors of the database are logged and counted, and Run tries again after an
// Interval. Meanwhile no gauges are exported: they are never older than an Interval and the time of a reading, which is
// 15 s at most, or an Interval if that is longer. Run returns nil, or an error if the collector is running already.
func (c *Collector) Run(ctx context.Context) error {
	if !c.running.CompareAndSwap(false, true) {
		return fmt.Errorf("run collector: %w", errRunning)
	}
	defer c.running.Store(false)
	if c.source == nil {
		<-ctx.Done()
		return nil
	}
	r := reader{c: c}
	defer r.close()
	tick := time.NewTicker(c.cfg.Interval)
	defer tick.Stop()
	select { // nobody has scraped before
	case <-ctx.Done():
		return nil
	case <-c.wanted:
	}
	for {
		r.step(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// reader is a Run.
type reader struct {
	c       *Collector
	conn    *pgx.Conn // holds the lock; nil if this process does not
	pid     uint32    // of the session that has taken the lock
	failing bool
}

// step does what is to be done once per Interval.
func (r *reader) step(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, max(r.c.cfg.Interval, readTimeout))
	defer cancel()
	if time.Since(time.Unix(0, r.c.scraped.Load())) > max(unscrapedAtLeast, unscraped*r.c.cfg.Interval) {
		r.close()
		return
	}
	now, err := r.read(ctx)
	switch {
	case err != nil && ctx.Err() == context.Canceled:
		return
	case err != nil:
		r.close()
		r.c.failures.Inc()
		if !r.failing {
			r.c.cfg.Logger.Error("gauges cannot be read from the database, and are not exported", "error", err)
		}
	case now == nil: // another session has the lock, which may be our last one while the server ends it
	case r.failing:
		r.c.cfg.Logger.Info("gauges can be read again")
		r.failing = false
	}
	r.failing = r.failing || err != nil
	r.c.latest.Store(now)
}

// read returns the gauges, nil if another process holds the lock.
func (r *reader) read(ctx context.Context) (*reading, error) {
	locked, err := r.lock(ctx)
	if err != nil {
		return nil, fmt.Errorf("take lock: %w", err)
	}
	if !locked {
		return nil, nil
	}
	return r.c.source.read(ctx)
}

// lock reports whether this process holds the lock, and tries to take it if it does not.
func (r *reader) lock(ctx context.Context) (bool, error) {
	if r.conn != nil {
		var pid uint32
		if err := r.conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
			return false, err
		}
		if pid != r.pid {
			return false, errPooler
		}
		return true, nil
	}
	conn, err := r.c.cfg.LockPool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer func() {
		if conn != nil {
			conn.Release()
		}
	}()
	var locked bool
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1), pg_backend_pid()",
		lockKey(r.c.cfg.Schema)).Scan(&locked, &r.pid); err != nil || !locked {
		return false, err
	}
	r.conn, conn = conn.Hijack(), nil
	return true, nil
}

// close gives up the lock and with it the gauges.
func (r *reader) close() {
	r.c.latest.Store(nil)
	if r.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = r.conn.Close(ctx) // the end of the session frees the lock
	r.conn = nil
}

// lockKey is the key of the advisory lock for a schema.
func lockKey(schema string) int64 {
	schema = cmp.Or(schema, "outbox")
	sum := sha256.Sum256([]byte("outboxgen:gauges:" + schema))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}
