package database

import (
	"context"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/pgserver"
)

// Open returns a pool on the database of DATABASE_URL, with all tables there. When the variable
// is not set it starts a PostgreSQL server for this run, which closeAll stops and removes; a service of
// your own would refuse to start.
func Open(ctx context.Context) (pool *pgxpool.Pool, closeAll func(), err error) {
	url, stop := os.Getenv("DATABASE_URL"), func() {}
	if url == "" {
		server, err := pgserver.Start(pgserver.Options{Durable: true})
		if err != nil {
			return nil, nil, err
		}
		url, stop = server.URL(), func() { _ = server.Stop() }
	}
	pool, err = pgxpool.New(ctx, url)
	if err != nil {
		stop()
		return nil, nil, fmt.Errorf("open database: %w", err)
	}
	closeAll = func() {
		pool.Close()
		stop()
	}
	if err := Migrate(ctx, pool); err != nil {
		closeAll()
		return nil, nil, err
	}
	return pool, closeAll, nil
}
