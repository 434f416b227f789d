package contact

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/examples/contacts/events"
)

// ErrConflict is what errors.Is finds in a *ConflictError.
var ErrConflict = errors.New("identity is taken")

// Field is what two identities of a tenant cannot share.
type Field string

// The fields.
const (
	ExternalID Field = "external id"
	Email      Field = "e-mail"
)

// ConflictError says that an identity of the tenant has the external id or the e-mail already; if both
// are taken it names the external id. It does not carry the value, so that it may be logged.
type ConflictError struct {
	Field     Field
	ContactID uuid.UUID // whose it is
}

// Error names the field and the contact.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s is linked to contact %s already", e.Field, e.ContactID)
}

// Unwrap returns ErrConflict.
func (e *ConflictError) Unwrap() error { return ErrConflict }

// conflict returns the *ConflictError of an identity that could not be inserted.
func conflict(ctx context.Context, tx pgx.Tx, l events.IdentityLinked) error {
	e := &ConflictError{Field: Email}
	var sameID bool
	err := tx.QueryRow(ctx, `
		SELECT contact_id, external_id = $2 AS same_id
		FROM crm.identities
		WHERE tenant_id = $1 AND (external_id = $2 OR lower(email) = lower($3))
		ORDER BY same_id DESC
		LIMIT 1`,
		l.TenantID, l.ExternalID, l.Email).Scan(&e.ContactID, &sameID)
	if err != nil {
		return fmt.Errorf("read conflicting identity: %w", err)
	}
	if sameID {
		e.Field = ExternalID
	}
	return e
}
