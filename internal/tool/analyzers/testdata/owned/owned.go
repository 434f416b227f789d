// Package owned enqueues events of operations outside them.
package owned

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/generator/testdata/operation-programs/want"
	"github.com/outboxgen/outboxgen/operation"
	"github.com/outboxgen/outboxgen/outbox"
)

func enqueue(ctx context.Context, tx pgx.Tx, b *pgx.Batch, p events.TurnFinalized) error {
	if _, err := events.EnqueueTurnFinalized(ctx, tx, p); err != nil { // want `^EnqueueTurnFinalized enqueues an event of operation FinalizeTurn outside it: call events\.FinalizeTurn, and return tx\.Settled$`
		return err
	}
	if _, err := events.EnqueueTurnFinalizedMany(ctx, tx, []events.TurnFinalized{p}); err != nil { // want `EnqueueTurnFinalizedMany enqueues an event of operation FinalizeTurn outside it`
		return err
	}
	_, err := events.EnqueueTurnFinalizedInBatch(b, p) // want `EnqueueTurnFinalizedInBatch enqueues an event of operation FinalizeTurn outside it`
	return err
}

func typed(ctx context.Context, tx pgx.Tx, b *pgx.Batch, p events.TurnStarted) error {
	topic := events.TurnStartedTopic
	if _, err := topic.Enqueue(ctx, tx, p); err != nil { // want `^Topic\.Enqueue enqueues an event of operation StartTurn outside it: call events\.StartTurn, and return tx\.Started$`
		return err
	}
	if _, err := topic.EnqueueMany(ctx, tx, []events.TurnStarted{p}); err != nil { // want `Topic\.EnqueueMany enqueues an event of operation StartTurn`
		return err
	}
	later := topic.EnqueueInBatch // want `Topic\.EnqueueInBatch enqueues an event of operation StartTurn`
	_, err := later(b, p)
	return err
}

// A topic of no operation, and one whose payload nobody knows here.
func topics[P any](ctx context.Context, tx pgx.Tx, opened events.ChatOpened, topic outbox.Topic[P], p P) error {
	if _, err := events.ChatOpenedTopic.Enqueue(ctx, tx, opened); err != nil {
		return err
	}
	_, err := topic.Enqueue(ctx, tx, p)
	return err
}

// The function is not called here, but it will be.
var asValue = events.EnqueueTurnFinalized // want `EnqueueTurnFinalized enqueues an event of operation FinalizeTurn outside it`

func untyped(ctx context.Context, tx pgx.Tx, b *pgx.Batch, p events.TurnStarted) error {
	topic := events.TurnStartedTopic.Untyped()
	if _, err := topic.Enqueue(ctx, tx, &p); err != nil { // want `^Untyped\(\)\.Enqueue enqueues an event of operation StartTurn outside it: call events\.StartTurn, and return tx\.Started$`
		return err
	}
	if _, err := topic.EnqueueMany(ctx, tx, []events.TurnStarted{p}); err != nil { // want `EnqueueMany enqueues an event of operation StartTurn`
		return err
	}
	_, err := topic.EnqueueInBatch(b, p) // want `EnqueueInBatch enqueues an event of operation StartTurn`
	return err
}

// The transaction of an operation is not its outcome.
func inside(ctx context.Context, db operation.Beginner, p events.TurnFinalized) error {
	return events.FinalizeTurn(ctx, db, func(ctx context.Context, tx *events.FinalizeTurnTx) (events.FinalizeTurnOutcome, error) {
		if _, err := events.EnqueueTurnFinalized(ctx, tx, p); err != nil { // want `EnqueueTurnFinalized enqueues an event of operation FinalizeTurn outside it`
			return events.FinalizeTurnOutcome{}, err
		}
		return tx.Settled(ctx, p)
	})
}

// An interface of the caller's own is followed to nowhere: the finding is where its implementation enqueues.
type finalizer interface {
	EnqueueTurnFinalized(ctx context.Context, p events.TurnFinalized) (outbox.Receipt, error)
}

func through(ctx context.Context, f finalizer, p events.TurnFinalized) error {
	_, err := f.EnqueueTurnFinalized(ctx, p)
	return err
}

func allowed(ctx context.Context, tx pgx.Tx, p events.TurnFinalized) error {
	//outboxgen:allow the turns of the old system ended long ago
	if _, err := events.EnqueueTurnFinalized(ctx, tx, p); err != nil {
		return err
	}
	if _, err := events.EnqueueTurnFinalized(ctx, tx, p); err != nil { //outboxgen:allow the same
		return err
	}
	//outboxgen:allow
	_, err := events.EnqueueTurnFinalized(ctx, tx, p) // want `EnqueueTurnFinalized enqueues an event`
	return err
}

// No operation owns this topic.
func free(ctx context.Context, tx pgx.Tx, chat uuid.UUID) error {
	_, err := events.EnqueueChatOpened(ctx, tx, events.ChatOpened{ChatID: chat})
	return err
}
