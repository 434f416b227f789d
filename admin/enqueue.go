package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/outbox"
)

// Enqueue writes one event that somebody has made by hand, in a transaction of its own, and leaves an entry in the audit
// that names its topic, its tenant and its id, and nothing of its payload or keys. Nobody checks here whether the payload
// fits the topic: the command outboxgen and the dashboard do. The errors are those of outbox.Enqueue. In a dry run the
// event is written and rolled back, so that the receipt says whether it would be a duplicate; its ID is then that of the
// other event, or zero.
//
// The role of the pool needs the roles producer and operator of `outboxgen migrate get --roles`.
func (a *Admin) Enqueue(ctx context.Context, m outbox.Message, act Act) (outbox.Receipt, error) {
	const what = "enqueue"
	act = a.actAs(act)
	if err := act.validate(); err != nil {
		return outbox.Receipt{}, fmt.Errorf("%s: %w", what, err)
	}
	var receipt outbox.Receipt
	err := pgx.BeginTxFunc(ctx, a.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
		if receipt, err = outbox.Enqueue(ctx, tx, a.db.Name(), m); err != nil {
			return err
		}
		if act.DryRun {
			return errPreview
		}
		if receipt.Duplicate {
			return nil
		}
		scope := auditScope{Namespace: m.Namespace, Topic: m.Topic, ID: &receipt.ID}
		if m.TenantID.Valid {
			scope.TenantID = &m.TenantID.UUID
		}
		return act.audit(ctx, a.db.On(tx), what, scope, 1)
	})
	switch {
	case errors.Is(err, errPreview):
		if !receipt.Duplicate {
			receipt.ID = uuid.Nil
		}
	case err != nil:
		return outbox.Receipt{}, err
	}
	return receipt, nil
}
