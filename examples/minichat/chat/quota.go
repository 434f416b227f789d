package chat

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/examples/minichat/events"
)

// Quota is the account of a tenant, in tokens.
type Quota struct {
	Budget, Reserved, Used int64
}

// SetBudget opens an account for tenant, or changes its budget.
func (s *Service) SetBudget(ctx context.Context, tenant uuid.UUID, tokens int64) error {
	_, err := s.pool.Exec(ctx, `
		INSERT INTO quotas (tenant_id, budget_tokens)
		VALUES ($1, $2)
		ON CONFLICT (tenant_id) DO UPDATE SET budget_tokens = excluded.budget_tokens`, tenant, tokens)
	if err != nil {
		return fmt.Errorf("set budget of tenant %s: %w", tenant, err)
	}
	return nil
}

// Quota returns the account of tenant, empty if it has no account.
func (s *Service) Quota(ctx context.Context, tenant uuid.UUID) (Quota, error) {
	var q Quota
	err := s.pool.QueryRow(ctx, `
		SELECT budget_tokens, reserved_tokens, used_tokens
		FROM quotas
		WHERE tenant_id = $1`, tenant).Scan(&q.Budget, &q.Reserved, &q.Used)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return q, fmt.Errorf("read quota of tenant %s: %w", tenant, err)
	}
	return q, nil
}

// reserve reserves tokens, or returns ErrQuotaExceeded and changes nothing.
func reserve(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, tokens int64) error {
	tag, err := tx.Exec(ctx, `
		UPDATE quotas
		SET reserved_tokens = reserved_tokens + $2
		WHERE tenant_id = $1 AND used_tokens + reserved_tokens + $2 <= budget_tokens`, tenant, tokens)
	if err == nil && tag.RowsAffected() == 0 {
		return ErrQuotaExceeded
	}
	return err
}

// settle replaces the tokens that t reserved by those that it used. These may be more, if the budget covers them.
func settle(ctx context.Context, tx pgx.Tx, t turn, u events.Usage) error {
	used := u.InputTokens + u.OutputTokens
	tag, err := tx.Exec(ctx, `
		UPDATE quotas
		SET reserved_tokens = reserved_tokens - $2, used_tokens = used_tokens + $3
		WHERE tenant_id = $1 AND used_tokens + reserved_tokens - $2 + $3 <= budget_tokens`, t.tenantID, t.reserved, used)
	if err == nil && tag.RowsAffected() == 0 {
		return ErrQuotaExceeded
	}
	return err
}
