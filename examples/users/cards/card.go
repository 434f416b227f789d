package cards

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/examples/users/events/userevents"
)

// Card is what this service knows about a user. The card of a deleted user has only the first three fields.
type Card struct {
	UserID      uuid.UUID
	Version     int64
	Deleted     bool
	Name, Email string
	JoinedAt    time.Time
}

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// List returns the cards of a tenant, including tombstones, ordered by user.
func List(ctx context.Context, db Querier, tenant uuid.UUID) ([]Card, error) {
	rows, err := db.Query(ctx, `
		SELECT user_id, version, deleted_at IS NOT NULL, coalesce(name, ''), coalesce(email, ''), coalesce(joined_at, 'epoch')
		FROM cards.cards
		WHERE tenant_id = $1
		ORDER BY user_id`, tenant)
	if err != nil {
		return nil, fmt.Errorf("list cards: %w", err)
	}
	cards, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Card])
	if err != nil {
		return nil, fmt.Errorf("list cards: %w", err)
	}
	return cards, nil
}

// writer writes the effects of events. Each event has the whole user, so it does not depend on earlier events: if a rename
// arrives first, it creates the card, and the creation is late then and skipped.
type writer struct{}

var _ userevents.UserConsumer = writer{}

// ConsumeUserCreated creates the card.
func (writer) ConsumeUserCreated(ctx context.Context, tx pgx.Tx, e consume.Delivery[userevents.UserCreated]) error {
	return write(ctx, tx, e.Payload.TenantID, e.Payload.UserID, e.Payload.UserVersion, e.Payload.Profile)
}

// ConsumeUserRenamed updates the card, or creates it.
func (writer) ConsumeUserRenamed(ctx context.Context, tx pgx.Tx, e consume.Delivery[userevents.UserRenamed]) error {
	return write(ctx, tx, e.Payload.TenantID, e.Payload.UserID, e.Payload.UserVersion, e.Payload.Profile)
}

// ConsumeUserDeleted leaves a tombstone, even if there was no card.
func (writer) ConsumeUserDeleted(ctx context.Context, tx pgx.Tx, e consume.Delivery[userevents.UserDeleted]) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO cards.cards AS c (user_id, tenant_id, version, deleted_at)
		VALUES ($1, $2, $3, $4)
		ON CONFLICT (tenant_id, user_id) DO UPDATE
		SET version = EXCLUDED.version, deleted_at = EXCLUDED.deleted_at, name = NULL, email = NULL, joined_at = NULL,
			changes = c.changes + 1`,
		e.Payload.UserID, e.Payload.TenantID, e.Payload.UserVersion, e.Time)
	if err != nil {
		return fmt.Errorf("delete card: %w", err)
	}
	return nil
}

// write is called only for versions above the last one, because the inbox skips the others. It never changes a tombstone,
// even if somebody emptied the inbox by hand.
func write(ctx context.Context, tx pgx.Tx, tenant, user uuid.UUID, version int64, profile userevents.Profile) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO cards.cards AS c (user_id, tenant_id, version, name, email, joined_at)
		VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (tenant_id, user_id) DO UPDATE
		SET version = EXCLUDED.version, name = EXCLUDED.name, email = EXCLUDED.email, joined_at = EXCLUDED.joined_at,
			changes = c.changes + 1
		WHERE c.deleted_at IS NULL`,
		user, tenant, version, profile.Name, profile.Email, profile.JoinedAt)
	if err != nil {
		return fmt.Errorf("write card: %w", err)
	}
	return nil
}
