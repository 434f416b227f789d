// Package pgtest gives each test its own PostgreSQL database. The server is the one at OUTBOXGEN_TEST_DATABASE_URL,
// else at DATABASE_URL, else a private server: the first test that needs it starts it from the binaries of this
// machine, and it ends with the test process.
//
// A test that needs a server for itself, for example to restart it, uses Server.
package pgtest

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
)

const (
	// Schema is the schema that Database migrates.
	Schema = "outbox"
	// URLVariable is the environment variable with the URL of the server to use. It takes precedence over DATABASE_URL.
	URLVariable = "OUTBOXGEN_TEST_DATABASE_URL"
	// poolSize is more than pgx's default, which is four on a small machine: too few for a test with a dispatcher, a few
	// producers and its own queries.
	poolSize = 20
	// cleanupTimeout expires only if something is broken.
	cleanupTimeout = time.Minute
)

// Supervisor is the name of the function that waits for the private server until the process ends. A leak check must
// ignore it: goleak.IgnoreAnyFunction(pgtest.Supervisor).
const Supervisor = "github.com/outboxgen/outboxgen/internal/testing/pgserver.(*process).supervise"

// state makes the view testing.events.
//
//go:embed state.sql
var state string

// Database returns a pool on a new database with the outbox in the schema "outbox", and with the view testing.events,
// through which tests read and write the events of queue topics together with their state. After the test the pool is
// closed and the database dropped. URL returns the URL of the database for another process.
func Database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return database(t, state)
}

// Plain is Database without the view.
func Plain(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return database(t, "")
}

func database(t testing.TB, more string) *pgxpool.Pool {
	t.Helper()
	c := shared(t)
	template, err := c.template(t.Context(), more)
	if err != nil {
		t.Fatalf("pgtest: make template database: %v", err)
	}
	return Pool(t, c.database(t, template))
}

// Empty returns the URL of a new database without an outbox. It is dropped after the test.
func Empty(t testing.TB) string {
	t.Helper()
	return shared(t).database(t, "template0")
}

// URL returns the connection URL of the pool's database, with the password, for another process.
func URL(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return pool.Config().ConnString()
}

// Pool opens a pool and closes it after the test. The test fails if a connection of the pool is still in use then.
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

// closePool closes pool. Closing a pool waits for every connection in use, and a test that failed in the middle of a
// transaction does not return its connection. So closePool waits for timeout only, and then reports the connections.
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

// Server starts a server for this test only, which may kill and restart it. Its maintenance database is empty. The
// start takes a second: use Database if the test only needs a database.
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

// sharedCluster is opened once per process and lives as long as the process, because the server belongs to no single
// test.
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
	// Tests run at the same time, and some have pools for several processes.
	server, err := pgserver.Start(pgserver.Options{MaxConnections: 400})
	if err != nil {
		return nil, err
	}
	c, err := connect(ctx, server.URL())
	if err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	return c, nil
}

// identifier quotes a name for a statement that takes no parameters.
func identifier(name string) string { return pgx.Identifier{name}.Sanitize() }

// Slow leaves a test out of `go test -short`, which `make quick` runs: it takes several seconds by its nature.
func Slow(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("slow: left out by -short")
	}
}
