// Package discarded drops errors.
package discarded

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/generator/testdata/operation-programs/want"
	"github.com/outboxgen/outboxgen/outbox"
)

func enqueues(ctx context.Context, tx pgx.Tx, p events.ChatOpened, m outbox.Message) outbox.Receipt {
	events.EnqueueChatOpened(ctx, tx, p)                                     // want `^the error of EnqueueChatOpened is discarded: the transaction may commit without the event$`
	_, _ = events.EnqueueChatOpened(ctx, tx, p)                              // want `the error of EnqueueChatOpened is discarded`
	_, _ = (events.EnqueueChatOpened(ctx, tx, p))                            // want `the error of EnqueueChatOpened is discarded`
	defer events.EnqueueChatOpened(ctx, tx, p)                               // want `the error of EnqueueChatOpened is discarded`
	go events.EnqueueChatOpened(ctx, tx, p)                                  // want `the error of EnqueueChatOpened is discarded`
	outbox.Enqueue(ctx, tx, "", m)                                           // want `the error of Enqueue is discarded`
	outbox.EnqueueMany(ctx, tx, "", []outbox.Message{m})                     // want `the error of EnqueueMany is discarded`
	events.ChatOpenedTopic.Untyped().Enqueue(ctx, tx, p)                     // want `the error of Enqueue is discarded`
	events.ChatOpenedTopic.Enqueue(ctx, tx, p)                               // want `the error of Enqueue is discarded`
	many, _ := events.EnqueueChatOpenedMany(ctx, tx, []events.ChatOpened{p}) // want `the error of EnqueueChatOpenedMany is discarded`
	var one, _ = events.EnqueueChatOpened(ctx, tx, p)                        // want `the error of EnqueueChatOpened is discarded`
	fmt.Println(many)
	return one
}

func batch(ctx context.Context, tx pgx.Tx, p events.ChatOpened) uuidOf {
	var b pgx.Batch
	pending, _ := events.EnqueueChatOpenedInBatch(&b, p) // want `the error of EnqueueChatOpenedInBatch is discarded`
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return uuidOf{}
	}
	receipt, _ := pending.Resolve(ctx, tx) // want `the error of Resolve is discarded`
	return uuidOf(receipt.ID)
}

type uuidOf [16]byte

func operations(ctx context.Context, pool *pgxpool.Pool, p events.TurnFinalized) {
	do := func(ctx context.Context, tx *events.FinalizeTurnTx) (events.FinalizeTurnOutcome, error) {
		tx.Settled(ctx, p)               // want `^the error of Settled is discarded: the events may not have been written$`
		outcome, _ := tx.Settled(ctx, p) // want `the error of Settled is discarded`
		return outcome, nil
	}
	events.FinalizeTurn(ctx, pool, do)     // want `^the error of FinalizeTurn is discarded: the operation may have been rolled back$`
	_ = events.FinalizeTurn(ctx, pool, do) // want `the error of FinalizeTurn is discarded`
	go events.FinalizeTurn(ctx, pool, do)  // want `the error of FinalizeTurn is discarded`
}

func wrapped(ctx context.Context, tx *events.FinalizeTurnTx, p events.TurnFinalized) (int, events.FinalizeTurnOutcome, error) {
	outcome, err := tx.Settled(ctx, p)
	return len(outcome.Receipts()), outcome, err
}

func wrapper(ctx context.Context, tx *events.FinalizeTurnTx, p events.TurnFinalized) (events.FinalizeTurnOutcome, error) {
	_, outcome, _ := wrapped(ctx, tx, p) // want `^the error of wrapped is discarded: the events may not have been written$`
	return outcome, nil
}

// Looking at the error only, or passing both on, is fine.
func kept(ctx context.Context, tx pgx.Tx, p events.ChatOpened) (outbox.Receipt, error) {
	if _, err := events.EnqueueChatOpened(ctx, tx, p); err != nil {
		return outbox.Receipt{}, err
	}
	_, err := events.EnqueueChatOpened(ctx, tx, p)
	fmt.Println(events.EnqueueChatOpened(ctx, tx, p))
	fmt.Println(err)
	outbox.Permanent(err)
	return events.EnqueueChatOpened(ctx, tx, p)
}
