// Package database brings up the tables that the contacts needs.
package database

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/migrate"
)

// Schema is the PostgreSQL schema of the outbox, as outbox.yaml has it.
const Schema = "outbox"

//go:embed 0001_contacts.sql
var contacts string

// Migrate creates the tables of the outbox and of the contacts where they are missing. Processes that start
// at once may all call it.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := migrate.Up(ctx, pool, Schema); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, contacts); err != nil {
		return fmt.Errorf("migrate contacts: %w", err)
	}
	return nil
}
