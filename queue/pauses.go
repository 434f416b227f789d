package queue

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/heartbeat"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

func newPauses(rows []queries.PauseOfNamespaceRow) *core.Pauses {
	keys := make([]string, 0, len(rows))
	for _, row := range rows {
		tenant := uuid.UUID(row.TenantID.Bytes)
		switch {
		case tenant == uuid.Nil && row.Topic == "":
			return core.PausesOf(true, nil)
		case tenant == uuid.Nil:
			keys = append(keys, row.Topic)
		case row.Topic == "":
			keys = append(keys, tenant.String())
		default:
			keys = append(keys, row.Topic+"/"+tenant.String())
		}
	}
	return core.PausesOf(false, keys)
}

// scanPauses reads the rows of PauseOfNamespace.
func scanPauses(rows pgx.Rows) (*core.Pauses, error) {
	var all []queries.PauseOfNamespaceRow
	var row queries.PauseOfNamespaceRow
	_, err := pgx.ForEachRow(rows, []any{&row.Topic, &row.TenantID}, func() error {
		all = append(all, row)
		return nil
	})
	return newPauses(all), err
}

// readPauses reads what is paused now.
func (s *Store) readPauses(ctx context.Context) (*core.Pauses, error) {
	rows, err := s.db.EachPlanned(s.pool).PauseOfNamespace(ctx, s.namespace)
	if err != nil {
		// the first statement of a drain
		return nil, s.db.Wrap("read pauses in database "+schemadb.DatabaseName(s.pool.Config().ConnConfig), err)
	}
	return newPauses(rows), nil
}

// readPauses reads what is paused now, for sweeps and for the next run, and returns it. After an error, which it
// reports, what was read last holds.
func (d *Dispatcher) readPauses(ctx context.Context) (*core.Pauses, error) {
	limited, cancel := context.WithTimeout(ctx, pauseTimeout)
	defer cancel()
	began := time.Now()
	p, err := d.store.readPauses(limited)
	if ctx.Err() == nil {
		d.rep.Statement("read what is paused", began, err)
	}
	if err == nil {
		d.pauses.Store(p)
	}
	return p, err
}

// pauseTimeout limits one reading of what is paused.
const pauseTimeout = 5 * time.Second

// heart returns what keeps the row of d in the table processes.
func (d *Dispatcher) heart() *heartbeat.Heart {
	topics := make(map[string]heartbeat.Topic, len(d.topics))
	for _, topic := range d.topics {
		h := d.handlers[topic]
		of := heartbeat.Topic{Version: h.version, MaxLag: h.maxLag.Seconds()}
		for _, l := range h.limits {
			of.AtOnce = d.atOnce(&h)
			of.Limits = append(of.Limits, heartbeat.Limit{
				Per: l.Per, Concurrency: l.Concurrency, Rate: l.Rate.Events, Period: l.Rate.Period.Seconds(),
			})
		}
		topics[h.namespace+"/"+topic] = of
	}
	return &heartbeat.Heart{
		DB: d.store.db, Pool: d.pool, Log: d.log, WorkerID: d.store.worker, Kind: heartbeat.Dispatcher,
		Name: d.store.namespace, Topics: topics, TenantIDs: d.cfg.TenantIDs, Changed: d.targets.Changed,
	}
}

// atOnce returns how many events of the topic of h are handled at once at most. A call of a publisher takes what is in
// flight.
func (d *Dispatcher) atOnce(h *Handler) int {
	if h.publication != nil {
		return max(d.cfg.Concurrency, d.cfg.BatchSize)
	}
	return min(d.cfg.Concurrency*max(h.batch.Size, 1), config.MaxBatchSize)
}
