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

	"github.com/outboxgen/outboxgen/internal/call/isnil"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
)

var (
	errNoFunc = errors.New("no function to run")
	errNoTx   = errors.New("no transaction given (nil)")
)

// Once records event as handled by the group and then runs fn, both in tx. What fn writes with tx happens exactly once,
// even after crashes. If the event was recorded before, handled is false and fn does not run.
//
// If another open transaction has recorded the event, Once waits for it to end. It skips the event if that transaction
// commits, and runs fn if it rolls back. ctx bounds the wait, but a context that ends during a statement also closes
// the connection.
//
// An error of fn is returned unchanged, and a panic or runtime.Goexit of fn becomes an error. fn runs in a goroutine of
// its own, and Once waits for it. The caller must then roll back: a commit would leave the event recorded without its
// effect. To continue with tx after such an error, run Once in a savepoint (tx.Begin) and roll that back. At REPEATABLE
// READ and SERIALIZABLE, an event that another transaction has recorded since the snapshot is ErrSerialization.
// ErrInvalidEvent is found before anything is sent and leaves tx usable; an error of PostgreSQL aborts tx.
func (i *Inbox) Once(
	ctx context.Context, tx pgx.Tx, event uuid.UUID, fn func(ctx context.Context) error,
) (handled bool, err error) {
	return once(ctx, i.db, tx, i.cfg.Group, event, fn)
}

func once(
	ctx context.Context, db *schemadb.Schema, tx pgx.Tx, group string, event uuid.UUID, fn func(ctx context.Context) error,
) (bool, error) {
	switch {
	case fn == nil:
		return false, fmt.Errorf("record event %s: %w", event, errNoFunc)
	case event == uuid.Nil:
		return false, fmt.Errorf("record event: %w", errZeroID)
	case isnil.Is(tx):
		return false, fmt.Errorf("record event %s: %w", event, errNoTx)
	}
	n, err := db.On(tx).ProcessedInsert(ctx, queries.ProcessedInsertParams{
		ConsumerGroup: group, EventID: pgvalue.UUID(event),
	})
	if err != nil {
		return false, db.Wrap(fmt.Sprintf("record event %s", event), err)
	}
	if n == 0 {
		return false, nil
	}
	if err := call(ctx, fn); err != nil {
		return false, err
	}
	return true, nil
}

// OnceMany is Once for a batch, in one statement. It records events and calls fn once with the indexes of those that
// were not recorded before, in ascending order. Of equal ids only the first counts. If all events were recorded before,
// fn does not run. OnceMany returns how many events were handled.
//
// Batches with events in common wait for each other in one order and cannot deadlock, as long as each transaction calls
// OnceMany once. The batch is handled as a whole: after an error of fn, the caller must roll back all of it.
func (i *Inbox) OnceMany(
	ctx context.Context, tx pgx.Tx, events []uuid.UUID, fn func(ctx context.Context, fresh []int) error,
) (handled int, err error) {
	if fn == nil {
		return 0, fmt.Errorf("record %d events: %w", len(events), errNoFunc)
	}
	if isnil.Is(tx) {
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
	recorded, err := i.db.On(tx).ProcessedInsertMany(ctx, queries.ProcessedInsertManyParams{
		ConsumerGroup: i.cfg.Group, EventIds: ids,
	})
	if err != nil {
		return 0, i.db.Wrap(fmt.Sprintf("record %d events", len(ids)), err)
	}
	if len(recorded) == 0 {
		return 0, nil
	}
	fresh := make([]int, len(recorded))
	for n, id := range recorded {
		fresh[n] = first[id.Bytes]
	}
	slices.Sort(fresh)
	if err := call(ctx, func(ctx context.Context) error { return fn(ctx, fresh) }); err != nil {
		return 0, err
	}
	return len(recorded), nil
}

// call calls fn in a goroutine of its own. A panic or runtime.Goexit is an error, so that the caller rolls back.
func call(ctx context.Context, fn func(context.Context) error) error {
	return usercode.Private(usercode.Call("effect", usercode.Never, func() error { return fn(ctx) }))
}
