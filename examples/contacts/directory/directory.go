// Package directory looks contacts up by their identities.
package directory

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/contacts/events"
)

// Directory is the table of identities. Any number of goroutines may use it concurrently.
type Directory struct {
	pool *pgxpool.Pool
}

var _ events.Directory = (*Directory)(nil)

// New returns the directory in the database of pool. The caller closes pool.
func New(pool *pgxpool.Pool) *Directory { return &Directory{pool: pool} }

// Put enters an identity in its own transaction. It does not change an existing entry, because an event may be
// delivered more than once.
func (d *Directory) Put(ctx context.Context, identity events.IdentityLinked) error {
	return pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		return insertEntry(ctx, tx, identity)
	})
}

func insertEntry(ctx context.Context, tx pgx.Tx, i events.IdentityLinked) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO crm.directory (identity_id, tenant_id, contact_id, type, value)
		VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (identity_id) DO NOTHING`,
		i.IdentityID, i.TenantID, i.ContactID, i.Type, i.Value)
	if err != nil {
		return fmt.Errorf("enter identity %s: %w", i.IdentityID, err)
	}
	return nil
}
