// Package zero returns outcomes that are none.
package zero

import (
	"context"
	"errors"

	"github.com/outboxgen/outboxgen/generator/testdata/operation-programs/want"
	"github.com/outboxgen/outboxgen/operation"
)

type tx = events.FinalizeTurnTx

func literals(ctx context.Context, db operation.Beginner, p events.TurnFinalized, late bool) error {
	return events.FinalizeTurn(ctx, db, func(ctx context.Context, tx *tx) (events.FinalizeTurnOutcome, error) {
		if late {
			return events.FinalizeTurnOutcome{}, nil // want `^this return ends the operation with a zero outcome, which rolls it back: return the outcome of a method of its transaction, or an error$`
		}
		if ctx.Err() != nil {
			return *new(events.FinalizeTurnOutcome), nil // want `zero outcome`
		}
		return tx.Settled(ctx, p)
	})
}

func variable(_ context.Context, _ *tx) (events.FinalizeTurnOutcome, error) {
	var outcome events.FinalizeTurnOutcome
	return outcome, nil // want `zero outcome`
}

func named(context.Context, *tx) (outcome events.FinalizeTurnOutcome, err error) {
	return // want `zero outcome`
}

func withoutError(*tx) events.FinalizeTurnOutcome {
	return events.FinalizeTurnOutcome{} // want `zero outcome`
}

func ofTheRuntime(context.Context, *operation.Operation) (operation.Outcome, error) {
	return operation.Outcome{}, nil // want `zero outcome`
}

func third(context.Context) (int, events.FinalizeTurnOutcome, error) {
	return 1, events.FinalizeTurnOutcome{}, nil // want `zero outcome`
}

// With an error, or after an assignment, the zero value is fine.
func fine(ctx context.Context, tx *tx, p events.TurnFinalized, how int) (events.FinalizeTurnOutcome, error) {
	var outcome, other events.FinalizeTurnOutcome
	var err error
	switch how {
	case 0:
		return events.FinalizeTurnOutcome{}, errors.New("no quota")
	case 1:
		outcome, err = tx.Settled(ctx, p)
		if err != nil {
			return events.FinalizeTurnOutcome{}, err
		}
		return outcome, nil
	case 2:
		set(tx, &other)
		return other, nil
	case 3:
		func() { outcome = tx.Refused() }()
		return outcome, nil
	}
	return outcome, err
}

func set(tx *tx, outcome *events.FinalizeTurnOutcome) { *outcome = tx.Refused() }

func fineNamed(ctx context.Context, tx *tx, p events.TurnFinalized) (outcome events.FinalizeTurnOutcome, err error) {
	if ctx.Err() != nil {
		err = ctx.Err()
		return
	}
	outcome, err = tx.Settled(ctx, p)
	return
}

func fineDeferred(context.Context, *tx) (_ events.FinalizeTurnOutcome, err error) {
	defer func() { err = errors.New("always") }()
	return
}

// The return of a function inside is its own.
func inner(tx *tx) events.FinalizeTurnOutcome {
	_ = func() (int, error) { return 0, nil }
	return tx.Refused()
}
