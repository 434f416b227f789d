package listener

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/machine/heartbeat"
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/internal/machine/retention"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/outbox"
)

// maintain prunes, checks the lag of all listeners, compares its topics with those of the listener's other processes,
// and looks for queue events of its namespaces that no process takes, once per PruneInterval, with jitter, until ctx
// ends.
func (l *Listener) maintain(ctx context.Context) {
	if l.cfg.PruneInterval < 0 {
		return
	}
	topics := make(map[string]outbox.Retention, len(l.handlers))
	for name, h := range l.handlers {
		topics[name] = h.retention
	}
	lags := &report.Lasting{
		Log: l.cfg.Logger, Level: slog.LevelError, Begin: "listener lags", End: "listener has caught up",
	}
	old := &report.Lasting{
		Log: l.log, Level: slog.LevelWarn,
		Begin: "an old transaction slows all listeners down and lets the tables grow: end it",
		End:   "the old transaction has ended",
	}
	passed := &report.Lasting{
		Log: l.log, Level: slog.LevelWarn, End: "no topic of another process of the listener is passed any more",
		Begin: "this process passes the events of a topic that another process of the listener reads: rename one of two " +
			"listeners of this name, or stop the old build",
	}
	orphans := heartbeat.NewOrphans(l.db, l.pool, l.log, l.namespaces(), heartbeat.OrphanAge)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff.Around(l.cfg.PruneInterval)):
		}
		l.alarm(ctx, lags)
		l.oldSnapshot(ctx, old)
		l.passes(ctx, passed)
		if err := orphans.Check(ctx); err != nil { // it needs a privilege that nothing else needs
			l.log.Debug("cannot look for events that nobody takes", "error", err)
		}
		l.statement(ctx, "check the sequence", func() error {
			_, _, err := l.db.CheckSequence(ctx, l.db.Each(l.pool))
			return err
		})
		began := time.Now()
		pruned, err := retention.Logs(ctx, l.db, l.pool, topics)
		if ctx.Err() == nil {
			l.rep.Statement("prune", began, err)
		}
		if pruned.Events > 0 {
			l.log.Debug("pruned", "count", pruned.Events)
		}
		l.signals.maintained.Emit()
	}
}

// namespaces are those of the topics that the listener reads.
func (l *Listener) namespaces() []string {
	var names []string
	for _, h := range l.handlers {
		if !slices.Contains(names, h.namespace) {
			names = append(names, h.namespace)
		}
	}
	return names
}

// statement runs call and records its result, unless ctx has ended.
func (l *Listener) statement(ctx context.Context, what string, call func() error) {
	began := time.Now()
	if err := call(); ctx.Err() == nil {
		l.rep.Statement(what, began, err)
	}
}

// alarm finds the listeners of the schema that lag more than their bound. This includes listeners that no process runs
// any more, because they keep events from being pruned.
func (l *Listener) alarm(ctx context.Context, lags *report.Lasting) {
	l.statement(ctx, "check lag", func() error {
		rows, err := l.db.Each(l.pool).ListenerLags(ctx)
		if err != nil {
			return err
		}
		var found []report.Condition
		for _, row := range rows {
			found = append(found, report.Condition{
				ID: []any{"listener", row.Listener, "shard", row.Shard},
				Attrs: []any{
					"lag", time.Duration(row.LagUs) * time.Microsecond, "max_lag", time.Duration(row.MaxLagUs) * time.Microsecond,
					"last_error", row.LastError,
				},
			})
		}
		lags.Found(found...)
		return nil
	})
}

// passes finds the topics that another process of the listener reads and this one does not. Whichever of them has a
// shard moves its cursor past the events that it does not read, so the other never gets them. That is how an old build
// treats the topics of a new one, and how two services treat each other's that have taken the same name for their
// listeners.
func (l *Listener) passes(ctx context.Context, passed *report.Lasting) {
	l.statement(ctx, "compare topics", func() error {
		rows, err := l.db.Each(l.pool).ProcessPassed(ctx, queries.ProcessPassedParams{
			Listener: l.spec.Name, WorkerID: pgvalue.UUID(l.cfg.WorkerID), Alive: pgvalue.Interval(heartbeat.AliveFor),
		})
		if err != nil {
			return err
		}
		var found []report.Condition
		for _, row := range rows {
			found = append(found, report.Condition{
				ID: []any{"topic", row.Topic}, Attrs: []any{"host", row.Host, "pid", row.Pid},
			})
		}
		passed.Found(found...)
		return nil
	})
}

// oldSnapshot finds the oldest transaction that has been open for longer than a PruneInterval. Each lease writes its
// cursor, and PostgreSQL cannot remove the replaced row versions while an open transaction may still read them. So
// every lease of a listener reads more row versions than the previous one. Claims of dispatchers do not: they pass the
// versions that they have met once. But the tables of both grow.
func (l *Listener) oldSnapshot(ctx context.Context, old *report.Lasting) {
	l.statement(ctx, "find old transactions", func() error {
		rows, err := l.db.Each(l.pool).SnapshotHolder(ctx, pgvalue.Interval(l.cfg.PruneInterval))
		if err != nil {
			return err
		}
		var found []report.Condition
		for _, row := range rows {
			found = append(found, report.Condition{
				ID:    []any{"pid", row.Pid, "role", row.Role},
				Attrs: []any{"state", row.State, "age", time.Duration(row.AgeUs) * time.Microsecond},
			})
		}
		old.Found(found...)
		return nil
	})
}
