package heartbeat

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
)

// Orphans finds due events that no running process takes, because none declares their topic, or because none knows
// their version. It logs a line when it finds a topic first, and one when it finds it no more. It is not safe for
// concurrent use.
type Orphans struct {
	db         *schemadb.Schema
	pool       *pgxpool.Pool
	namespaces []string
	late       time.Duration
	undeclared *report.Lasting
	unknown    *report.Lasting
}

// OrphanAge is how long an event of a queue topic may be due until its topic counts as one that no process takes. It is
// longer than a deployment takes, and than a drain by cron waits.
const OrphanAge = 10 * time.Minute

// orphanHead is how many due rows of each lane are read.
const orphanHead = 200

// NewOrphans returns what finds the orphans of namespaces that are due for longer than late.
func NewOrphans(
	db *schemadb.Schema, pool *pgxpool.Pool, log *slog.Logger, namespaces []string, late time.Duration,
) *Orphans {
	return &Orphans{
		db: db, pool: pool, namespaces: namespaces, late: late,
		undeclared: &report.Lasting{
			Log: log, Level: slog.LevelWarn,
			Begin: "no running process takes a topic that has due events: deploy a handler, or list its name in renamed_from",
			End:   "topic is taken again, or has no due events",
		},
		unknown: &report.Lasting{
			Log: log, Level: slog.LevelWarn,
			Begin: "no running process knows a payload version that due events have: deploy one that does",
			End:   "payload version is known again, or has no due events",
		},
	}
}

// Check looks once.
func (o *Orphans) Check(ctx context.Context) error {
	rows, err := o.db.Each(o.pool).ProcessOrphans(ctx, queries.ProcessOrphansParams{
		Namespaces: o.namespaces, Late: pgvalue.Interval(o.late), HeadSize: orphanHead, Alive: pgvalue.Interval(AliveFor),
	})
	if err != nil {
		return o.db.Wrap("find events that nobody takes", err)
	}
	var undeclared, unknown []report.Condition
	for _, r := range rows {
		id := []any{"namespace", r.Namespace, "topic", r.Topic}
		if r.Known {
			unknown = append(unknown, report.Condition{ID: append(id, "version", r.Version)})
		} else if n := len(undeclared); n == 0 || undeclared[n-1].ID[3] != r.Topic || undeclared[n-1].ID[1] != r.Namespace {
			undeclared = append(undeclared, report.Condition{ID: id})
		}
	}
	o.undeclared.Found(undeclared...)
	o.unknown.Found(unknown...)
	return nil
}
