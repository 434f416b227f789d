// Package database brings up the tables of the service that has the users.
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

//go:embed 0001_users.sql
var users string

// Migrate creates the tables of the outbox and of the users where they are missing. Processes that start
// at once may all call it.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := migrate.Up(ctx, pool, Schema); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, users); err != nil {
		return fmt.Errorf("migrate users: %w", err)
	}
	return nil
}
