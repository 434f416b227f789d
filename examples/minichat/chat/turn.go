package chat

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/examples/minichat/events"
)

// turn is a row of turns, with the time of the transaction that read it.
type turn struct {
	id                          events.TurnID
	tenantID, chatID, requestID uuid.UUID
	model, state                string
	version, reserved           int64
	now                         time.Time
}

func insertTurn(ctx context.Context, tx pgx.Tx, id events.TurnID, state string, r StartRequest) error {
	tag, err := tx.Exec(ctx, `
		INSERT INTO turns (id, tenant_id, chat_id, request_id, model, state, reserved_tokens)
		VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (tenant_id, request_id) DO NOTHING`,
		id, r.TenantID, r.ChatID, r.RequestID, r.Model, state, r.ReserveTokens)
	if err == nil && tag.RowsAffected() == 0 {
		return ErrRequestRepeated
	}
	return err
}

// loadTurn also compares the tenant, so that no tenant can read the turns of another.
func loadTurn(ctx context.Context, tx pgx.Tx, tenantID uuid.UUID, id events.TurnID) (turn, error) {
	t := turn{id: id, tenantID: tenantID}
	err := tx.QueryRow(ctx, `
		SELECT chat_id, request_id, model, state, version, reserved_tokens, now()
		FROM turns
		WHERE id = $1 AND tenant_id = $2`, id, tenantID).
		Scan(&t.chatID, &t.requestID, &t.model, &t.state, &t.version, &t.reserved, &t.now)
	if errors.Is(err, pgx.ErrNoRows) {
		return t, ErrTurnNotFound
	}
	return t, err
}

// closeTurn moves a running turn to its terminal state. The dedupe key excludes a second end while the event of the
// turn is kept. The condition on state excludes it permanently.
func closeTurn(ctx context.Context, tx pgx.Tx, t turn, r FinalizeRequest) error {
	tag, err := tx.Exec(ctx, `
		UPDATE turns
		SET state = $2, version = version + 1, input_tokens = $3, output_tokens = $4, finalized_at = now()
		WHERE id = $1 AND state = 'running'`,
		t.id, r.Outcome, r.Usage.InputTokens, r.Usage.OutputTokens)
	if err == nil && tag.RowsAffected() == 0 {
		return ErrTurnNotRunning
	}
	return err
}
