// Package pgtest gives each test a PostgreSQL database of its own. The server is the one named by
// OUTBOXGEN_TEST_DATABASE_URL, else by DATABASE_URL, else a private one that is started from the
// binaries of this machine when the first test asks and that ends with the test process.
//
// A test that needs more than a database, such as one that restarts the server, asks for Server.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/pgserver"
)

const (
	// Schema is the schema that Database migrates.
	Schema = "outbox"
	// URLVariable names the environment variable with the server to use, before DATABASE_URL.
	URLVariable = "OUTBOXGEN_TEST_DATABASE_URL"
	// poolSize is above pgx's default, which on a small machine is four: less than what a test with a
	// dispatcher, a few producers and its own queries holds at once.
	poolSize = 20
	// cleanupTimeout only passes when something is broken.
	cleanupTimeout = time.Minute
)

// Supervisor is the function that waits for the private server until the process ends. A leak check
// has to ignore it: goleak.IgnoreAnyFunction(pgtest.Supervisor).
const Supervisor = "github.com/outboxgen/outboxgen/internal/pgserver.(*process).supervise"

// Database returns a pool on a new database with the outbox in the schema "outbox". Pool and database
// are gone after the test. Pool.Config().ConnString() is the URL for another process.
func Database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	c := shared(t)
	template, err := c.template(t.Context())
	if err != nil {
		t.Fatalf("pgtest: make template database: %v", err)
	}
	return Pool(t, c.database(t, template))
}

// Empty returns the URL of a new database without any schema of ours, gone after the test.
func Empty(t testing.TB) string {
	t.Helper()
	return shared(t).database(t, "template0")
}

// URL returns the connection URL of the pool's database, password included, for another process.
func URL(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return pool.Config().ConnString()
}

// Pool opens a pool that is closed after the test, which fails if one of its connections is still in use.
func Pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	cfg.MaxConns = poolSize
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatalf("pgtest: open pool: %v", err)
	}
	t.Cleanup(func() { closePool(t, pool, cleanupTimeout) })
	return pool
}

// closePool closes pool, or says what keeps it open: pgxpool waits for every connection in use. The timeout bounds that
// wait, since a test that failed in the middle of a transaction does not give its connection back.
func closePool(t testing.TB, pool *pgxpool.Pool, timeout time.Duration) {
	t.Helper()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(timeout):
		t.Errorf("pgtest: %d connections are in use after the test: a transaction, rows or a connection was not closed",
			pool.Stat().AcquiredConns())
	}
}

// Server starts a server for this test alone, which may kill and restart it. Its maintenance database
// is empty. It takes a second; a test that only needs a database wants Database.
func Server(t testing.TB, opts pgserver.Options) *pgserver.Server {
	t.Helper()
	s, err := pgserver.Start(opts)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return s
}

// sharedCluster is started once a process and lives as long as it: a server belongs to no test.
var sharedCluster = sync.OnceValues(openCluster)

func shared(t testing.TB) *cluster {
	t.Helper()
	c, err := sharedCluster()
	if err != nil {
		t.Fatalf("pgtest: %v; or name a server in %s", err, URLVariable)
	}
	return c
}

// openCluster finds the server and connects to it.
func openCluster() (*cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, name := range []string{URLVariable, "DATABASE_URL"} {
		if url := os.Getenv(name); url != "" {
			c, err := connect(ctx, url)
			if err != nil {
				return nil, fmt.Errorf("use the server of %s: %w", name, err)
			}
			return c, nil
		}
	}
	server, err := pgserver.Start(pgserver.Options{})
	if err != nil {
		return nil, err
	}
	c, err := connect(ctx, server.URL())
	if err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	return c, nil
}

// identifier quotes a name of ours for a statement that takes no parameters.
func identifier(name string) string { return pgx.Identifier{name}.Sanitize() }
