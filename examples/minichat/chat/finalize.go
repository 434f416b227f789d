package chat

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/examples/minichat/events"
	"github.com/outboxgen/outboxgen/outbox"
)

// FinalizeTx is Finalize in a transaction of the caller, who must roll it back after an error.
//
// FinalizeTx enqueues the event first, because its dedupe key decides a race. A second finaliser waits on the key until
// the first one commits. Then it learns that its event is a duplicate, before it has settled anything. If the first one
// rolls back, the second wins.
func (s *Service) FinalizeTx(ctx context.Context, tx pgx.Tx, r FinalizeRequest) (Finalized, error) {
	t, err := loadTurn(ctx, tx, r.TenantID, r.TurnID)
	if err != nil {
		return Finalized{}, err
	}
	if t.state == "refused" {
		return Finalized{}, ErrTurnNotRunning
	}
	receipt, err := events.EnqueueTurnFinalized(ctx, tx, turnFinalized(t, r), outbox.WithTenant(r.TenantID))
	if err != nil {
		return Finalized{}, err
	}
	if receipt.Duplicate {
		return Finalized{EventID: receipt.ID, Duplicate: true}, nil
	}
	if err := closeTurn(ctx, tx, t, r); err != nil {
		return Finalized{}, err
	}
	if err := settle(ctx, tx, t, r.Usage); err != nil {
		return Finalized{}, err
	}
	return Finalized{EventID: receipt.ID}, nil
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
