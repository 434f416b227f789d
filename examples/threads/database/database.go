// Package database creates the tables of the chat.
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

//go:embed 0001_threads.sql
var threads string

// Migrate creates the missing tables of the outbox and of the chat. Processes that start concurrently may all call it.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := migrate.Up(ctx, pool, Schema); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, threads); err != nil {
		return fmt.Errorf("migrate threads: %w", err)
	}
	return nil
}
