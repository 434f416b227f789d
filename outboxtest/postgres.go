// Package outboxtest helps to test code that enqueues and handles events. It gives a test its own database, checks what was
// enqueued, and runs a dispatcher or listener in the test's goroutine.
package outboxtest

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
)

// Postgres returns a pool on a new database with the outbox in the schema "outbox". Tests share nothing, so they may run in
// parallel. The pool is closed and the database dropped when the test ends. Create your own tables yourself. With Schema,
// the outbox is in the schemas that you name instead.
//
// The server is the one at OUTBOXGEN_TEST_DATABASE_URL, else at DATABASE_URL; its role must be allowed to create
// databases. Without either, Postgres starts a private server from the PostgreSQL binaries of this machine, which ends
// with the test process. A database takes about 50 ms, the first one per process takes one or two seconds. If there is
// no PostgreSQL, the test fails and says what to install.
//
// A test binary that checks for leaked goroutines must ignore the one that waits for the private server:
// goleak.IgnoreAnyFunction(outboxtest.Supervisor).
func Postgres(t testing.TB, opts ...Option) *pgxpool.Pool {
	t.Helper()
	var o options
	for i, opt := range opts {
		if opt == nil {
			t.Fatalf("outboxtest.Postgres: option %d of %d is nil", i+1, len(opts))
		}
		opt(&o)
	}
	if len(o.schemas) == 0 {
		return pgtest.Plain(t)
	}
	pool := pgtest.Pool(t, pgtest.Empty(t))
	for _, schema := range o.schemas {
		if _, err := migrate.Up(t.Context(), pool, schema); err != nil {
			t.Fatalf("outboxtest.Postgres: %v", err)
		}
	}
	return pool
}

// Option changes the database that Postgres creates.
type Option func(*options)

type options struct {
	schemas []string
}

// Schema creates the schema name and puts the outbox into it, instead of into "outbox". Several Schema options create
// several outboxes; name "outbox" too if the test needs it. Each one takes about a tenth of a second to migrate.
func Schema(name string) Option {
	return func(o *options) { o.schemas = append(o.schemas, name) }
}

// Supervisor is the name of the function of the one goroutine that Postgres leaves running.
const Supervisor = pgtest.Supervisor
