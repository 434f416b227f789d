package listener

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/outbox"
)

// HandleBatch is Handle for a listener with Spec.Batch: fn gets consecutive events of t, in the order of the listener,
// as many as there are up to Batch.Size. It may get several of one partition key.
//
// If fn returns nil, all of them are delivered. If it returns an outbox.BatchError, which may be wrapped, those that it
// names have failed, each with its own error. The others are delivered, also those behind a failed one of their key: fn
// had them together and decides. Later calls get no events of that key until the failed one is done.
//
// An error that is marked as Unavailable, or with RetryAfter, is that of each event. After any other error, even a
// Permanent one, a panic or runtime.Goexit, fn is called again with halves of the events until the one that fails is
// alone. Only that one is charged an attempt. What fn did before it failed happens again then.
//
// A payload that cannot be decoded is a permanent failure of its event alone.
func HandleBatch[P any](
	t outbox.Topic[P], h any, fn func(context.Context, []outbox.Delivery[P]) error,
) Handler {
	given := h != nil && fn != nil
	return listenerHandlesBatches(t.Untyped(), given, func(ctx context.Context, _ pgx.Tx, all []decoded) error {
		return fn(ctx, deliveries[P](all))
	})
}

// HandleTxBatch is HandleBatch with the transaction in which the cursor moves: what fn writes with tx happens exactly
// once. tx is a savepoint per call. It is kept if fn returns nil or an outbox.BatchError, and rolled back otherwise. So
// fn must not write for an event that it names, or must undo that, for example with a savepoint of its own by tx.Begin.
// fn must neither commit nor roll back tx.
func HandleTxBatch[P any](
	t outbox.Topic[P], h any, fn func(context.Context, pgx.Tx, []outbox.Delivery[P]) error,
) Handler {
	given := h != nil && fn != nil
	lh := listenerHandlesBatches(t.Untyped(), given, func(ctx context.Context, tx pgx.Tx, all []decoded) error {
		return fn(ctx, tx, deliveries[P](all))
	})
	lh.transactional = true
	return lh
}

// decoded is an event with a pointer to its payload.
type decoded struct {
	event   outbox.Event
	payload any
}

func deliveries[P any](all []decoded) []outbox.Delivery[P] {
	ds := make([]outbox.Delivery[P], len(all))
	for i, d := range all {
		ds[i] = outbox.Delivery[P]{Event: d.event, Payload: *d.payload.(*P)}
	}
	return ds
}

func listenerHandlesBatches(
	t *outbox.UntypedTopic, given bool, call func(context.Context, pgx.Tx, []decoded) error,
) Handler {
	lh := listenerHandler(t, false, nil)
	if given {
		lh.decoder, lh.runBatch = config.Opener(t), call
	}
	return lh
}

// validateBatch checks what a Spec says of batches.
func validateBatch(b outbox.Batch) error {
	switch {
	case b.Size < 0 || b.Size > config.MaxBatchSize:
		return fmt.Errorf("field Batch: Size %d is not between 1 and %d", b.Size, config.MaxBatchSize)
	case b.Wait < 0:
		return fmt.Errorf("field Batch: Wait %s is negative", b.Wait)
	case b.Wait > 0 && b.Size == 0:
		return errors.New("field Batch: Wait is set without Size")
	}
	return nil
}
