package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/absent"
	"github.com/outboxgen/outboxgen/internal/dbschema"
	"github.com/outboxgen/outboxgen/internal/dbsqlc"
	"github.com/outboxgen/outboxgen/internal/pgvalue"
)

var (
	errNoFunc = errors.New("no function to run")
	errNoTx   = errors.New("no transaction given (nil)")
)

// Once records event as handled by the group and runs fn, both in tx: the effect of fn, as far as it is written with
// tx, happens once, whatever crashes. handled is false when the event was recorded before; fn is not run then.
//
// While another transaction that has recorded the event is open, Once waits for its end, and skips the event if that
// one commits, or runs fn if it rolls back. ctx bounds the wait, but a context that ends in mid-statement ends the
// connection, too.
//
// An error of fn is returned as it is and must end in a rollback, which is the caller's: to commit all the same would
// leave the event recorded without its effect. A caller that goes on with tx runs Once in a savepoint (tx.Begin) and
// rolls that back. At REPEATABLE READ and SERIALIZABLE a rival that has committed since the snapshot is
// ErrSerialization. ErrInvalidEvent is found before anything is sent and leaves tx usable; errors of PostgreSQL do not.
func (i *Inbox) Once(ctx context.Context, tx pgx.Tx, event uuid.UUID, fn func(ctx context.Context) error) (handled bool, err error) {
	return once(ctx, i.db, tx, i.cfg.Group, event, fn)
}

func once(ctx context.Context, db *dbschema.Schema, tx pgx.Tx, group string, event uuid.UUID, fn func(ctx context.Context) error) (bool, error) {
	switch {
	case fn == nil:
		return false, fmt.Errorf("record event %s: %w", event, errNoFunc)
	case event == uuid.Nil:
		return false, fmt.Errorf("record event: %w", errZeroID)
	case absent.Is(tx):
		return false, fmt.Errorf("record event %s: %w", event, errNoTx)
	}
	n, err := db.On(tx).ProcessedInsert(ctx, dbsqlc.ProcessedInsertParams{ConsumerGroup: group, EventID: pgvalue.UUID(event)})
	if err != nil {
		return false, wrap(fmt.Sprintf("record event %s", event), err)
	}
	if n == 0 {
		return false, nil
	}
	if err := fn(ctx); err != nil {
		return false, err
	}
	return true, nil
}

// OnceMany is Once for a batch, in one statement: it records events and runs fn once for those that were not recorded
// before, given by their indexes, in the order of events; of two equal ids the first counts. fn is not run when there
// are none. It returns how many were handled.
//
// Events of overlapping batches wait for each other in one order and cannot deadlock, as long as a transaction makes
// one call. The batch is handled as a whole: an error of fn must end in a rollback that undoes all of it.
func (i *Inbox) OnceMany(ctx context.Context, tx pgx.Tx, events []uuid.UUID, fn func(ctx context.Context, fresh []int) error) (handled int, err error) {
	if fn == nil {
		return 0, fmt.Errorf("record %d events: %w", len(events), errNoFunc)
	}
	if absent.Is(tx) {
		return 0, fmt.Errorf("record %d events: %w", len(events), errNoTx)
	}
	if len(events) == 0 {
		return 0, nil
	}
	first := make(map[uuid.UUID]int, len(events))
	for n, event := range events {
		if event == uuid.Nil {
			return 0, fmt.Errorf("record event %d of %d: %w", n+1, len(events), errZeroID)
		}
		if _, twice := first[event]; !twice {
			first[event] = n
		}
	}
	ids := make([]pgtype.UUID, 0, len(first))
	for event := range first {
		ids = append(ids, pgvalue.UUID(event))
	}
	slices.SortFunc(ids, func(a, b pgtype.UUID) int { return bytes.Compare(a.Bytes[:], b.Bytes[:]) })
	recorded, err := i.db.On(tx).ProcessedInsertMany(ctx, dbsqlc.ProcessedInsertManyParams{ConsumerGroup: i.cfg.Group, EventIds: ids})
	if err != nil {
		return 0, wrap(fmt.Sprintf("record %d events", len(ids)), err)
	}
	if len(recorded) == 0 {
		return 0, nil
	}
	fresh := make([]int, len(recorded))
	for n, id := range recorded {
		fresh[n] = first[id.Bytes]
	}
	slices.Sort(fresh)
	if err := fn(ctx, fresh); err != nil {
		return 0, err
	}
	return len(recorded), nil
}
