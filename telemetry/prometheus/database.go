package prometheus

import (
	"cmp"
	"context"
	"slices"

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
	for _, read := range []func(context.Context, *reading) error{
		d.readTopics, d.readLimits, d.readListeners, d.readConsumers, d.readHeld,
	} {
		if err := read(ctx, r); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (d *database) readTopics(ctx context.Context, r *reading) error {
	topics, err := d.admin.Topics(ctx)
	if err != nil {
		return err
	}
	for _, t := range topics {
		name := t.Name()
		r.set(gaugeDue, float64(t.Due.N), name)
		r.set(gaugeRetrying, float64(t.Retrying.N), name)
		r.set(gaugeScheduled, float64(t.Scheduled.N), name)
		r.set(gaugeInFlight, float64(t.InFlight.N+t.Expired.N), name)
		r.set(gaugeOldest, t.Oldest.Seconds(), name)
		r.set(gaugeDead, float64(t.Dead.N), name, "")
		r.set(gaugeProcesses, float64(len(t.Processes)), name)
		r.set(gaugeVersions, float64(len(t.UnhandledVersions)), name)
	}
	return nil
}

// readLimits sums up the keys of each limit.
func (d *database) readLimits(ctx context.Context, r *reading) error {
	limits, err := d.admin.Limits(ctx)
	if err != nil || len(limits) == 0 {
		return err
	}
	waits, err := d.admin.LimitWaits(ctx)
	if err != nil {
		return err
	}
	for _, l := range limits {
		name, per := l.Namespace+"/"+l.Topic, cmp.Or(l.Per, "topic")
		used, waiting, longest := 0.0, 0.0, 0.0
		for _, k := range l.Keys {
			if n := l.Value.Concurrency; n > 0 {
				used = max(used, float64(k.Running)/float64(n))
			}
			if n := l.Value.Rate.Events; n > 0 {
				used = max(used, float64(k.Starts)/float64(n))
			}
		}
		for _, w := range waits {
			if w.LimitScope == l.LimitScope {
				waiting, longest = float64(w.Waiting.N), w.Longest.Seconds()
			}
		}
		full, _ := l.Full()
		r.set(gaugeLimitWaiting, waiting, name, per)
		r.set(gaugeLimitLongest, longest, name, per)
		r.set(gaugeLimitUsed, used, name, per)
		r.set(gaugeLimitFull, float64(len(full)), name, per)
	}
	return nil
}

// readListeners sums up the shards of each listener.
func (d *database) readListeners(ctx context.Context, r *reading) error {
	shards, err := d.admin.Listeners(ctx)
	if err != nil {
		return err
	}
	processes, err := d.admin.Processes(ctx)
	if err != nil {
		return err
	}
	running := make(map[string]int)
	for _, p := range processes {
		if p.Alive && p.Kind == admin.ProcessListener {
			running[p.Name]++
		}
	}
	for len(shards) > 0 {
		n := slices.IndexFunc(shards, func(s admin.ListenerStatus) bool { return s.Listener != shards[0].Listener })
		if n < 0 {
			n = len(shards)
		}
		var sum admin.ListenerStatus
		for _, s := range shards[:n] {
			sum.Lag, sum.Unread = max(sum.Lag, s.Lag), sum.Unread+s.Unread
			sum.ParkedEvents, sum.DeadLetters = sum.ParkedEvents+s.ParkedEvents, sum.DeadLetters+s.DeadLetters
			sum.Paused = sum.Paused || s.Paused
		}
		name, paused := shards[0].Listener, 0.0
		if sum.Paused {
			paused = 1
		}
		r.set(gaugeLag, sum.Lag.Seconds(), name)
		r.set(gaugeUnread, float64(sum.Unread), name)
		r.set(gaugeParked, float64(sum.ParkedEvents), name)
		r.set(gaugeDead, float64(sum.DeadLetters), "", name)
		r.set(gaugePaused, paused, name)
		r.set(gaugeListenerProcesses, float64(running[name]), name)
		shards = shards[n:]
	}
	return nil
}

func (d *database) readConsumers(ctx context.Context, r *reading) error {
	consumers, err := d.admin.Consumers(ctx)
	if err != nil {
		return err
	}
	for _, c := range consumers {
		r.set(gaugeConsumerParked, float64(c.Parked.N), c.Consumer)
		r.set(gaugeConsumerDead, float64(c.Dead.N), c.Consumer)
		r.set(gaugeConsumerOldest, c.Oldest.Seconds(), c.Consumer)
		r.set(gaugeConsumerOverdue, c.Overdue.Seconds(), c.Consumer)
	}
	return nil
}

// readHeld finds the oldest transaction that keeps old row versions of this database. This process's own are short.
func (d *database) readHeld(ctx context.Context, r *reading) error {
	var seconds float64
	err := d.pool.QueryRow(ctx, `SELECT coalesce(extract(epoch FROM statement_timestamp() - least(
		(SELECT min(a.xact_start) FROM pg_catalog.pg_stat_activity AS a
		 WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
		   AND (a.datname = current_database() OR a.datname IS NULL) AND a.pid <> pg_backend_pid()
		   AND a.backend_type <> 'autovacuum worker'),
		(SELECT min(p.prepared) FROM pg_catalog.pg_prepared_xacts AS p WHERE p.database = current_database()))), 0)::float8`).
		Scan(&seconds)
	if err != nil {
		return err
	}
	r.set(gaugeHeld, max(seconds, 0))
	return nil
}
