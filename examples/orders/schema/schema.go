// Package schema holds the tables of the shop.
package schema

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/migrate"
)

//go:embed 0001_shop.sql
var shop string

// Up creates the tables of the outbox and of the shop where they are missing.
func Up(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := migrate.Up(ctx, pool, "outbox"); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, shop); err != nil {
		return fmt.Errorf("create tables of the shop: %w", err)
	}
	return nil
}
