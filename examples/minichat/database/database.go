// Package database creates the tables of minichat.
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

//go:embed 0001_minichat.sql
var minichat string

// Migrate creates the missing tables of the outbox and of minichat. Processes that start concurrently may all call it.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := migrate.Up(ctx, pool, Schema); err != nil {
		return err
	}
	if err := createTables(ctx, pool); err != nil {
		return fmt.Errorf("migrate minichat: %w", err)
	}
	return nil
}

func createTables(ctx context.Context, pool *pgxpool.Pool) error {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // after a commit it does nothing
	// CREATE IF NOT EXISTS does not wait for another session that is creating the same table.
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtext('minichat migrations'))"); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, minichat); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
