// Package ledger records what each tenant has used. It is built only from the events of minichat.
package ledger

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/minichat/events"
)

// Ledger is the table usage_ledger. Any number of goroutines may use it concurrently.
type Ledger struct {
	pool *pgxpool.Pool
}

var _ events.UsageLedger = (*Ledger)(nil)

// New returns the ledger in the database of pool. The caller closes pool.
func New(pool *pgxpool.Pool) *Ledger { return &Ledger{pool: pool} }

// Record enters the usage of a turn once per tenant, turn and request. A repeat, by the same event or by another, changes
// nothing and is not an error.
func (l *Ledger) Record(ctx context.Context, eventID uuid.UUID, turn events.TurnFinalized) error {
	_, err := l.pool.Exec(ctx, `
		INSERT INTO usage_ledger (tenant_id, turn_id, request_id, event_id, outcome, model, input_tokens, output_tokens, finalized_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
		ON CONFLICT (tenant_id, turn_id, request_id) DO NOTHING`,
		turn.TenantID, turn.TurnID, turn.RequestID, eventID, turn.Outcome, turn.Model,
		turn.Usage.InputTokens, turn.Usage.OutputTokens, turn.FinalizedAt)
	if err != nil {
		return fmt.Errorf("record usage of turn %s: %w", turn.TurnID, err)
	}
	return nil
}

// Total is the sum of the entries of a tenant.
type Total struct {
	Turns, InputTokens, OutputTokens int64
}

// Total adds up the entries of tenant.
func (l *Ledger) Total(ctx context.Context, tenant uuid.UUID) (Total, error) {
	var t Total
	err := l.pool.QueryRow(ctx, `
		SELECT count(*), coalesce(sum(input_tokens), 0)::bigint, coalesce(sum(output_tokens), 0)::bigint
		FROM usage_ledger
		WHERE tenant_id = $1`, tenant).Scan(&t.Turns, &t.InputTokens, &t.OutputTokens)
	if err != nil {
		return t, fmt.Errorf("add up ledger of tenant %s: %w", tenant, err)
	}
	return t, nil
}
