package admin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/retention"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/outbox"
)

// PruneReport says what Prune deleted, what it kept, and for which listeners.
type PruneReport struct {
	Log         int64 `json:"log"`          // events of log topics
	DeadLetters int64 `json:"dead_letters"` // dead letters of listeners
	Queue       int64 `json:"queue"`        // events of queue topics, delivered or dead
	Blocked     int64 `json:"blocked"`      // events of log topics past their retention that are kept for some listener
	// BlockedBy counts them for each listener that has not passed them: one that lags, is paused, or is not run any
	// more.
	BlockedBy map[string]int64 `json:"blocked_by"`
}

// Prune deletes what is older than the retention of its topic. topics holds the retention by "namespace/topic", for log
// and queue topics. Prune deletes events of the log that every listener of the schema has passed, dead letters of
// listeners, failed attempts of listeners that are older than 30 days and than the longest retention of dead events,
// and delivered and dead events of the queue. Each chunk is a transaction, so an error does not undo the earlier
// chunks. If Prune has deleted anything that PruneReport counts, it leaves a row in the table audit when it ends.
func (a *Admin) Prune(ctx context.Context, topics map[string]outbox.Retention) (PruneReport, error) {
	r := PruneReport{BlockedBy: make(map[string]int64)}
	keep := make(map[string]outbox.Retention, len(topics))
	for topic, retention := range topics {
		if _, _, ok := strings.Cut(topic, "/"); !ok {
			return r, fmt.Errorf("prune: topic %q is not named like mini_chat/turn_finalized", topic)
		}
		keep[topic] = config.RetentionWithDefaults(retention)
	}
	if len(keep) == 0 {
		return r, nil
	}
	act, err := a.actor("prune")
	if err != nil {
		return r, err
	}
	if err = a.pruneLog(ctx, keep, &r); err == nil {
		err = a.pruneQueue(ctx, keep, &r)
	}
	if n := r.Log + r.DeadLetters + r.Queue; n > 0 && !a.preview {
		err = errtext.Join(err, finished(ctx, func(ctx context.Context) error {
			names := slices.Sorted(maps.Keys(keep))
			return a.db.Wrap("prune", act.audit(ctx, a.db.Each(a.pool), "prune", auditScope{Topics: names}, n))
		}))
	}
	return r, err
}

func (a *Admin) pruneLog(ctx context.Context, topics map[string]outbox.Retention, r *PruneReport) error {
	if a.preview {
		return a.countPrunable(ctx, topics, r)
	}
	pruned, err := retention.Logs(ctx, a.db, a.pool, topics)
	r.Log, r.Blocked, r.DeadLetters = int64(pruned.Events), int64(pruned.Blocked), int64(pruned.DeadLetters)
	if err != nil || r.Blocked == 0 {
		return err
	}
	return a.blockedBy(ctx, topics, r)
}

// countPrunable counts what pruneLog would delete and keep.
func (a *Admin) countPrunable(ctx context.Context, topics map[string]outbox.Retention, r *PruneReport) error {
	q := a.db.EachPlanned(a.pool) // they read whole tables
	names, delivered, dead := retentions(topics)
	row, err := q.LogPrunable(ctx, queries.LogPrunableParams{Topics: names, RetentionsUs: delivered})
	if err != nil {
		return a.db.Wrap("prune log", err)
	}
	r.Log, r.Blocked = row.Old-row.Blocked, row.Blocked
	if r.DeadLetters, err = q.DeadLetterPrunable(ctx, queries.DeadLetterPrunableParams{
		Topics: names, RetentionsUs: dead,
	}); err != nil {
		return a.db.Wrap("prune dead letters", err)
	}
	if r.Blocked == 0 {
		return nil
	}
	return a.blockedBy(ctx, topics, r)
}

func (a *Admin) blockedBy(ctx context.Context, topics map[string]outbox.Retention, r *PruneReport) error {
	names, delivered, _ := retentions(topics)
	rows, err := a.db.EachPlanned(a.pool).LogBlocked(ctx, queries.LogBlockedParams{Topics: names, RetentionsUs: delivered})
	if err != nil {
		return a.db.Wrap("prune log", err)
	}
	for _, row := range rows {
		r.BlockedBy[row.Listener] = row.Blocked
	}
	return nil
}

// pruneQueue deletes, or in a preview counts, the final events of the queue that are past their retention.
func (a *Admin) pruneQueue(ctx context.Context, topics map[string]outbox.Retention, r *PruneReport) error {
	for _, name := range slices.Sorted(maps.Keys(topics)) {
		n, err := a.pruneFinal(ctx, name, topics[name])
		if r.Queue += n; err != nil {
			return err
		}
	}
	return nil
}

func (a *Admin) pruneFinal(ctx context.Context, name string, keep outbox.Retention) (int64, error) {
	namespace, topic, _ := strings.Cut(name, "/")
	if !a.preview {
		n, err := retention.Queue(ctx, a.db, a.pool, namespace, topic, keep)
		return int64(n), err
	}
	q := a.db.EachPlanned(a.pool)
	delivered, err := q.EventPrunableDelivered(ctx, queries.EventPrunableDeliveredParams{
		Namespace: namespace, Topic: topic, Retention: pgvalue.Interval(keep.Delivered),
	})
	if err != nil {
		return 0, a.db.Wrap("prune", err)
	}
	dead, err := q.EventPrunableDead(ctx, queries.EventPrunableDeadParams{
		Namespace: namespace, Topic: topic, Retention: pgvalue.Interval(keep.Dead),
	})
	return delivered + dead, a.db.Wrap("prune", err)
}

// retentions lists topics for SQL.
func retentions(topics map[string]outbox.Retention) (names []string, delivered, dead []int64) {
	for _, name := range slices.Sorted(maps.Keys(topics)) {
		names = append(names, name)
		delivered = append(delivered, topics[name].Delivered.Microseconds())
		dead = append(dead, topics[name].Dead.Microseconds())
	}
	return names, delivered, dead
}
