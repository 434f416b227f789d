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

// Field is a field in which two identities of a tenant must differ.
type Field string

// The fields.
const (
	ExternalID Field = "external id"
	Email      Field = "e-mail"
)

// ConflictError says that another identity of the tenant has the external id or the e-mail. If both are taken, it
// names the external id. It does not contain the value, so it may be logged.
type ConflictError struct {
	Field     Field
	ContactID uuid.UUID // the contact that has it
}

// Error names the field and the contact.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s is linked to contact %s already", e.Field, e.ContactID)
}

// Unwrap returns ErrConflict.
func (e *ConflictError) Unwrap() error { return ErrConflict }

// conflict returns the *ConflictError for an identity that could not be inserted.
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
