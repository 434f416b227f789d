package contact

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/examples/contacts/events"
)

// ErrConflict is the error that a *ConflictError wraps.
var ErrConflict = errors.New("identity is taken")

// ConflictError says that an identity of the tenant and type has the value already. It does not contain the value, so it
// may be logged.
type ConflictError struct {
	Type      events.IdentityType
	ContactID uuid.UUID // the contact that has it
}

// Error names the type and the contact.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s is linked to contact %s already", e.Type, e.ContactID)
}

// Unwrap returns ErrConflict.
func (e *ConflictError) Unwrap() error { return ErrConflict }

// conflict returns the *ConflictError for an identity that could not be inserted.
func conflict(ctx context.Context, tx pgx.Tx, l events.IdentityLinked) error {
	e := &ConflictError{Type: l.Type}
	err := tx.QueryRow(ctx, `
		SELECT contact_id
		FROM crm.identities
		WHERE tenant_id = $1 AND type = $2 AND crm.identity_key(type, value) = crm.identity_key($2, $3)`,
		l.TenantID, l.Type, l.Value).Scan(&e.ContactID)
	if err != nil {
		return fmt.Errorf("read conflicting identity: %w", err)
	}
	return e
}
