// Package retention deletes what is older than the retention of its topic.
package retention

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/outbox"
)

const (
	// PruneScan is how many positions of the log one transaction of a prune reads.
	PruneScan = 1000
	// PruneChunk is how many rows any other transaction of a prune deletes at most.
	PruneChunk = 1000
)

// Pruned says what Logs deleted, and what it kept.
type Pruned struct {
	Events      int // of log topics
	DeadLetters int // of listeners
	Blocked     int // events that are kept for some listener
}

// Logs deletes what is past the retention of topics ("namespace/topic") in the tables of the log: its events, the dead
// letters of listeners, and failed attempts of listeners. An error does not undo what was deleted before it.
func Logs(
	ctx context.Context, db *schemadb.Schema, pool *pgxpool.Pool, topics map[string]outbox.Retention,
) (p Pruned, err error) {
	if p.Events, p.Blocked, err = log(ctx, db, pool, topics); err != nil {
		return p, err
	}
	if p.DeadLetters, err = deadLetters(ctx, db, pool, topics); err != nil {
		return p, err
	}
	return p, failures(ctx, db, pool, topics)
}

// log deletes events of topics ("namespace/topic") that are older than their retention and that every listener
// has passed, walking the log once from its beginning as far as anything is old enough. What comes behind the positions
// where some events are kept for a listener is only counted. By the time the walk comes there, that listener may have
// passed both, and a listener that starts at the earliest event would find a hole between what was kept and what
// follows.
func log(
	ctx context.Context, db *schemadb.Schema, pool *pgxpool.Pool, topics map[string]outbox.Retention,
) (deleted, blocked int, err error) {
	if len(topics) == 0 {
		return 0, 0, nil
	}
	p := queries.LogPruneParams{ScanSize: PruneScan}
	for topic, keep := range topics {
		p.Topics = append(p.Topics, topic)
		p.RetentionsUs = append(p.RetentionsUs, keep.Delivered.Microseconds())
	}
	for {
		var row queries.LogPruneRow
		err := db.WithCursorLock(ctx, pool, "prune log", func(q *queries.Queries) (err error) {
			row, err = q.LogPrune(ctx, p)
			return err
		})
		if err != nil {
			return deleted, blocked, err
		}
		deleted += int(row.Deleted)
		blocked += int(row.Blocked)
		p.CountOnly = blocked > 0
		if row.Young || row.Scanned < PruneScan {
			return deleted, blocked, nil
		}
		p.AfterSeq = row.LastSeq
	}
}

// deadLetters deletes dead letters of listeners past the retention of their topic.
func deadLetters(
	ctx context.Context, db *schemadb.Schema, pool *pgxpool.Pool, topics map[string]outbox.Retention,
) (int, error) {
	p := queries.DeadLetterPruneParams{BatchSize: PruneChunk}
	for topic, keep := range topics {
		p.Topics = append(p.Topics, topic)
		p.RetentionsUs = append(p.RetentionsUs, keep.Dead.Microseconds())
	}
	total := 0
	for {
		n, err := db.EachPlanned(pool).DeadLetterPrune(ctx, p)
		total += int(n)
		if err != nil || n < PruneChunk {
			return total, db.Wrap("prune dead letters", err)
		}
	}
}

// keepFailures is how long failed attempts of listeners are kept at least, because topics may be some of all.
const keepFailures = 30 * 24 * time.Hour

// failures deletes failed attempts of listeners that are older than the longest retention of dead letters of topics.
func failures(ctx context.Context, db *schemadb.Schema, pool *pgxpool.Pool, topics map[string]outbox.Retention) error {
	longest := keepFailures
	for _, keep := range topics {
		longest = max(longest, keep.Dead)
	}
	for {
		n, err := db.EachPlanned(pool).ListenerFailuresPrune(ctx, queries.ListenerFailuresPruneParams{
			Keep: pgvalue.Interval(longest), BatchSize: PruneChunk,
		})
		if err != nil || n < PruneChunk {
			return db.Wrap("prune failures of listeners", err)
		}
	}
}

// Queue deletes events of a queue topic that were delivered or died longer ago than keep says, in chunks of one
// transaction each, and returns how many.
func Queue(
	ctx context.Context, db *schemadb.Schema, pool *pgxpool.Pool, namespace, topic string, keep outbox.Retention,
) (int, error) {
	total := 0
	for _, chunk := range [...]func(*queries.Queries) (int64, error){
		func(q *queries.Queries) (int64, error) {
			return q.EventPruneDelivered(ctx, queries.EventPruneDeliveredParams{
				Namespace: namespace, Topic: topic, Retention: pgvalue.Interval(keep.Delivered), BatchSize: PruneChunk,
			})
		},
		func(q *queries.Queries) (int64, error) {
			return q.EventPruneDead(ctx, queries.EventPruneDeadParams{
				Namespace: namespace, Topic: topic, Retention: pgvalue.Interval(keep.Dead), BatchSize: PruneChunk,
			})
		},
	} {
		for n := int64(PruneChunk); n >= PruneChunk; {
			err := db.Wrap("prune", db.InTx(ctx, pool, func(q *queries.Queries) (err error) {
				n, err = chunk(q)
				return err
			}))
			if err != nil { // n may be that of the chunk before
				return total, err
			}
			total += int(n)
		}
	}
	return total, nil
}
