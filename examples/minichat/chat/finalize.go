package chat

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/examples/minichat/events"
	"github.com/outboxgen/outboxgen/operation"
	"github.com/outboxgen/outboxgen/outbox"
)

// FinalizeTx is Finalize in a transaction of the caller: what it does takes effect if tx commits. After an error nothing of
// it is left in tx.
func (s *Service) FinalizeTx(ctx context.Context, tx pgx.Tx, r FinalizeRequest) (Finalized, error) {
	return finalize(ctx, tx, r)
}

// finalize runs the operation finalize_turn on db. Its outcome is the only way to commit, and only the event makes it: no
// turn ends without its event.
func finalize(ctx context.Context, db operation.Beginner, r FinalizeRequest) (f Finalized, err error) {
	err = events.FinalizeTurn(ctx, db, func(ctx context.Context, tx *events.FinalizeTurnTx) (settled events.FinalizeTurnOutcome, err error) {
		f, settled, err = settleTurn(ctx, tx, r)
		return settled, err
	})
	if err != nil {
		return Finalized{}, err
	}
	return f, nil
}

// settleTurn enqueues the event first, because its dedupe key decides a race. A second finaliser waits on the key until
// the first one commits. Then it learns that its event is a duplicate, before it has settled anything. If the first one
// rolls back, the second wins.
func settleTurn(ctx context.Context, tx *events.FinalizeTurnTx, r FinalizeRequest) (f Finalized, settled events.FinalizeTurnOutcome, err error) {
	t, err := loadTurn(ctx, tx, r.TenantID, r.TurnID)
	if err != nil {
		return f, settled, err
	}
	if t.state == "refused" {
		return f, settled, ErrTurnNotRunning
	}
	settled, err = tx.With(outbox.WithTenant(r.TenantID)).Settled(ctx, turnFinalized(t, r))
	if err != nil {
		return f, settled, err
	}
	receipt := settled.Receipts()[0]
	f = Finalized{EventID: receipt.ID, Duplicate: receipt.Duplicate}
	if f.Duplicate {
		return f, settled, nil
	}
	if err := closeTurn(ctx, tx, t, r); err != nil {
		return f, settled, err
	}
	return f, settled, settle(ctx, tx, t, r.Usage)
}

// turnFinalized returns the event for the end of t as r describes it.
func turnFinalized(t turn, r FinalizeRequest) events.TurnFinalized {
	p := events.TurnFinalized{
		TenantID:    t.tenantID,
		TurnID:      t.id,
		RequestID:   t.requestID,
		ChatID:      t.chatID,
		TurnVersion: t.version + 1,
		Outcome:     r.Outcome,
		Usage:       r.Usage,
		Model:       t.model,
		Tags:        r.Tags,
		FinalizedAt: t.now,
	}
	if r.Note != "" {
		p.Note = &r.Note
	}
	return p
}
