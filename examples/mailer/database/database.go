// Package database creates the tables of the mailer.
package database

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/migrate"
)

// Schema is the PostgreSQL schema of the outbox, as in outbox.yaml.
const Schema = "outbox"

//go:embed 0001_mailer.sql
var mailer string

// Migrate creates the missing tables of the outbox and of the mailer. Processes that start concurrently may all call
// it.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := migrate.Up(ctx, pool, Schema); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, mailer); err != nil {
		return fmt.Errorf("migrate mailer: %w", err)
	}
	return nil
}
