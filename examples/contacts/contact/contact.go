// Package contact keeps the contacts of a tenant and their identities. An identity and its event are written in one
// transaction, so either both exist or neither does.
package contact

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/examples/contacts/events"
)

// ErrNotFound says that the tenant does not have the contact.
var ErrNotFound = errors.New("contact not found")

// Identity is something that a contact is known by: the id that another system has for it, an e-mail or a phone number.
// A contact may have any number of each, and needs none of a certain type. Within a tenant and type, a value belongs to
// only one contact. E-mails that differ only in case are one value, and so are phone numbers with the same digits.
type Identity struct {
	TenantID  uuid.UUID
	ContactID uuid.UUID
	Type      events.IdentityType
	Value     string
}

// ErrInvalid says that a value is not one of its type. The error does not contain the value, so it may be logged.
var ErrInvalid = errors.New("not valid")

var (
	emailPattern = regexp.MustCompile(`^[^@\s]+@[^@\s]+$`)
	phonePattern = regexp.MustCompile(`^\+[0-9][0-9 ()./-]{4,30}$`)
)

// check returns an error if the value is not one of its type.
func (i Identity) check() error {
	switch {
	case i.Type == events.IdentityTypeEmail && !emailPattern.MatchString(i.Value):
		return fmt.Errorf("email is %w: use a name, an @ and a domain", ErrInvalid)
	case i.Type == events.IdentityTypePhone && !phonePattern.MatchString(i.Value):
		return fmt.Errorf("phone is %w: use a plus, the country's code and digits", ErrInvalid)
	}
	return nil
}

// Create writes a contact with tx and returns its id.
func Create(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, name string) (uuid.UUID, error) {
	id := uuid.New()
	_, err := tx.Exec(ctx, `
		INSERT INTO crm.contacts (tenant_id, id, name)
		VALUES ($1, $2, $3)`,
		tenant, id, name)
	if err != nil {
		return uuid.Nil, fmt.Errorf("create contact: %w", err)
	}
	return id, nil
}

// Link writes an identity and its event with tx, and returns the id of the identity. The error is
// ErrNotFound if the tenant does not have the contact, ErrInvalid if the value is not one of its type, and a
// *ConflictError if it is taken. If an open transaction has taken it, Link waits for the end of that
// transaction. After an error tx must be rolled back.
func Link(ctx context.Context, tx pgx.Tx, i Identity) (uuid.UUID, error) {
	linked := events.IdentityLinked{
		TenantID:   i.TenantID,
		ContactID:  i.ContactID,
		IdentityID: uuid.New(),
		Type:       i.Type,
		Value:      i.Value,
	}
	if err := i.check(); err != nil {
		return uuid.Nil, fmt.Errorf("link identity: %w", err)
	}
	var err error
	if linked.ContactVersion, err = nextVersion(ctx, tx, i); err != nil {
		return uuid.Nil, fmt.Errorf("link identity: %w", err)
	}
	if linked.LinkedAt, err = insertIdentity(ctx, tx, linked); err != nil {
		return uuid.Nil, fmt.Errorf("link identity: %w", err)
	}
	if _, err := events.EnqueueIdentityLinked(ctx, tx, linked); err != nil {
		return uuid.Nil, fmt.Errorf("link identity: %w", err)
	}
	return linked.IdentityID, nil
}

// nextVersion locks the contact until the end of tx, so that the versions of its events are in the order of
// their commits.
func nextVersion(ctx context.Context, tx pgx.Tx, i Identity) (version int64, err error) {
	err = tx.QueryRow(ctx, `
		UPDATE crm.contacts
		SET version = version + 1
		WHERE tenant_id = $1 AND id = $2
		RETURNING version`,
		i.TenantID, i.ContactID).Scan(&version)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, ErrNotFound
	}
	return version, err
}

// insertIdentity relies on the unique index to find out whether the identity is new. With a check before the
// insert, another transaction could insert it in between.
func insertIdentity(ctx context.Context, tx pgx.Tx, l events.IdentityLinked) (at time.Time, err error) {
	err = tx.QueryRow(ctx, `
		INSERT INTO crm.identities (id, tenant_id, contact_id, type, value)
		VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT DO NOTHING
		RETURNING linked_at`,
		l.IdentityID, l.TenantID, l.ContactID, l.Type, l.Value).Scan(&at)
	if errors.Is(err, pgx.ErrNoRows) {
		return at, conflict(ctx, tx, l)
	}
	return at, err
}
