package prometheus

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/admin"
)

// database reads the gauges from a database.
type database struct {
	pool  *pgxpool.Pool
	admin *admin.Admin
}

func newDatabase(pool *pgxpool.Pool, schema string) (*database, error) {
	a, err := admin.New(pool, schema)
	if err != nil {
		return nil, err
	}
	return &database{pool, a}, nil
}

func (d *database) read(ctx context.Context) (*reading, error) {
	r := &reading{}
	for _, read := range []func(context.Context, *reading) error{d.readTopics, d.readListeners, d.readHeld} {
		if err := read(ctx, r); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (d *database) readTopics(ctx context.Context, r *reading) error {
	return nil
}

// readListeners sums up the shards of each listener.
func (d *database) readListeners(ctx context.Context, r *reading) error {
	shards, err := d.admin.Listeners(ctx)
	if err != nil {
		return err
	}
	for i := 0; i < len(shards); {
		name := shards[i].Listener
		var lag time.Duration
		var unread int64
		paused := false
		first := shards[i]
		for ; i < len(shards) && shards[i].Listener == name; i++ {
			lag, unread = max(lag, shards[i].Lag), unread+shards[i].Unread
			paused = paused || shards[i].Paused
		}
		r.time(gaugeLag, lag, name)
		r.count(gaugeUnread, unread, name)
		_ = first
		_ = paused
	}
	return nil
}

// readHeld finds the oldest transaction that keeps old row versions of this database. This process's own are short.
func (d *database) readHeld(ctx context.Context, r *reading) error {
	var seconds float64
	err := d.pool.QueryRow(ctx, `SELECT coalesce(extract(epoch FROM statement_timestamp() - least(
		(SELECT min(a.xact_start) FROM pg_catalog.pg_stat_activity AS a
		 WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
		   AND (a.datname = current_database() OR a.datname IS NULL) AND a.pid <> pg_backend_pid() AND a.backend_type <> 'autovacuum worker'),
		(SELECT min(p.prepared) FROM pg_catalog.pg_prepared_xacts AS p WHERE p.database = current_database()))), 0)::float8`).Scan(&seconds)
	if err != nil {
		return err
	}
	r.set(gaugeHeld, max(seconds, 0))
	return nil
}
