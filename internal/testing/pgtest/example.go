package pgtest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
)

// lastExample is the database of the example that ran last. Examples of a package run one after another.
var lastExample struct {
	sync.Mutex
	pool *pgxpool.Pool // nil without one
}

// ExampleDatabase is Database for an Example, which has no testing.TB. The next call closes the pool and drops the
// database. TestMain calls EndExamples for the last one. ExampleDatabase panics if there is no server.
func ExampleDatabase() *pgxpool.Pool { return example("") }

// ExampleEmpty is ExampleDatabase without an outbox.
func ExampleEmpty() *pgxpool.Pool { return example("template0") }

// EndExamples closes the pool and drops the database of the last example, if there is one.
func EndExamples() {
	lastExample.Lock()
	defer lastExample.Unlock()
	if err := endExample(); err != nil {
		panic(err)
	}
}

// example returns a pool on a copy of template; "" means that of Database.
func example(template string) *pgxpool.Pool {
	lastExample.Lock()
	defer lastExample.Unlock()
	if err := errors.Join(endExample(), beginExample(template)); err != nil {
		panic(err)
	}
	return lastExample.pool
}

func beginExample(template string) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	c, err := sharedCluster()
	if err != nil {
		return fmt.Errorf("pgtest: %w; or name a server in %s", err, URLVariable)
	}
	if template == "" {
		if template, err = c.template(ctx, ""); err != nil {
			return fmt.Errorf("pgtest: make template database: %w", err)
		}
	}
	_, dsn, err := c.create(ctx, template)
	if err != nil {
		return fmt.Errorf("pgtest: create database: %w", err)
	}
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	cfg.MaxConns = poolSize
	if lastExample.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return fmt.Errorf("pgtest: open pool: %w", err)
	}
	return nil
}

func endExample() error {
	pool := lastExample.pool
	if pool == nil {
		return nil
	}
	lastExample.pool = nil
	pool.Close()
	c, err := sharedCluster()
	if err != nil {
		return err
	}
	if err := c.drop(pool.Config().ConnConfig.Database); err != nil {
		return fmt.Errorf("pgtest: drop database: %w", err)
	}
	return nil
}
