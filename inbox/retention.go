package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/call/isnil"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// pruneChunk is how many rows one transaction of a prune deletes.
const pruneChunk = 1000

// Prune deletes the group's records of handled events that are older than Retention, and its quarantined events and
// dead messages that are older than QuarantineRetention. It deletes the oldest first, in short separate transactions,
// and returns how many rows it deleted, also with an error. Nothing calls Prune automatically: call it about once an
// hour. Several processes may run it concurrently. Consumers do not wait for it, with one exception: a delivery of an
// event whose record is just being deleted waits for that transaction.
//
// Prune does not delete the versions of entities. There is one version per entity, and it keeps a late event stale even
// when its record has been deleted.
func (i *Inbox) Prune(ctx context.Context, pool *pgxpool.Pool) (int, error) {
	if pool == nil {
		return 0, errors.New("prune handled events: no pool given (nil)")
	}
	events, err := i.prune(ctx, pool, i.cfg.Retention,
		func(q *queries.Queries, p queries.ProcessedPruneParams) (queries.ProcessedPruneRow, error) {
			return q.ProcessedPrune(ctx, p)
		})
	if err != nil {
		return events, i.db.Wrap("prune handled events", err)
	}
	quarantined, err := i.prune(ctx, pool, i.cfg.QuarantineRetention,
		func(q *queries.Queries, p queries.ProcessedPruneParams) (queries.ProcessedPruneRow, error) {
			row, err := q.InboxQuarantinePrune(ctx, queries.InboxQuarantinePruneParams(p))
			return queries.ProcessedPruneRow(row), err
		})
	if err != nil {
		return events + quarantined, i.db.Wrap("prune quarantined events", err)
	}
	dead, err := i.prune(ctx, pool, i.cfg.QuarantineRetention,
		func(q *queries.Queries, p queries.ProcessedPruneParams) (queries.ProcessedPruneRow, error) {
			row, err := q.InboxMessagePrune(ctx, queries.InboxMessagePruneParams(p))
			return queries.ProcessedPruneRow(row), err
		})
	return events + quarantined + dead, i.db.Wrap("prune dead messages", err)
}

// prune runs chunk until it deletes less than a full chunk. Each chunk starts where the one before ended.
func (i *Inbox) prune(ctx context.Context, pool *pgxpool.Pool, retention time.Duration,
	chunk func(*queries.Queries, queries.ProcessedPruneParams) (queries.ProcessedPruneRow, error),
) (deleted int, err error) {
	if retention == Forever {
		return 0, nil
	}
	p := queries.ProcessedPruneParams{
		ConsumerGroup: i.cfg.Group,
		After:         pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true},
		Retention:     pgtype.Interval{Microseconds: retention.Microseconds(), Valid: true},
		BatchSize:     pruneChunk,
	}
	for {
		var row queries.ProcessedPruneRow
		err := i.db.InTx(ctx, pool, func(q *queries.Queries) (err error) {
			row, err = chunk(q, p)
			return err
		})
		if err != nil {
			return deleted, err
		}
		deleted += int(row.Deleted)
		if row.Deleted < pruneChunk {
			return deleted, nil
		}
		p.After = row.Last
	}
}

// Reset deletes everything that the group has recorded, with tx: handled events, versions, quarantined events, and
// parked and dead messages. Call it in the transaction that empties the projection, before the events are replayed from
// the start. No consumer of the group may run at that time: its effect could survive the reset.
func (i *Inbox) Reset(ctx context.Context, tx pgx.Tx) error {
	if isnil.Is(tx) {
		return fmt.Errorf("reset group %s: %w", i.cfg.Group, errNoTx)
	}
	return i.db.Wrap(fmt.Sprintf("reset group %s", i.cfg.Group), i.db.On(tx).InboxReset(ctx, i.cfg.Group))
}
