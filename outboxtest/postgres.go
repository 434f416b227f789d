// Package outboxtest helps to test code that enqueues and handles events: a database for the test, a
// look at what was enqueued, and a dispatcher run in the test's own goroutine.
package outboxtest

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
)

// Postgres returns a pool on a new database with the outbox in the schema "outbox". Nothing is shared
// with other tests, so that they may run in parallel; pool and database are gone when the test ends.
// Tables of your own are yours to create. With Schema the outbox is in the schemas that it names instead.
//
// The server is the one of OUTBOXGEN_TEST_DATABASE_URL, else of DATABASE_URL, whose role must be
// allowed to create databases; without either a private server is started from the PostgreSQL binaries
// of this machine and ends with the test process. A database takes some 50 ms, the first one of a
// process a second or two. Without any PostgreSQL the test fails with what to install.
//
// A test binary that looks for leaked goroutines must except the one that waits for the private
// server: goleak.IgnoreAnyFunction(outboxtest.Supervisor).
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
		return pgtest.Database(t)
	}
	pool := pgtest.Pool(t, pgtest.Empty(t))
	for _, schema := range o.schemas {
		if _, err := migrate.Up(t.Context(), pool, schema); err != nil {
			t.Fatalf("outboxtest.Postgres: %v", err)
		}
	}
	return pool
}

// Option changes what Postgres makes.
type Option func(*options)

type options struct {
	schemas []string
}

// Schema puts the outbox into the schema name, which is made, instead of "outbox". Given again it adds another outbox:
// name "outbox" too if the test needs it. Each costs a tenth of a second or so, as the migrations run for it.
func Schema(name string) Option {
	return func(o *options) { o.schemas = append(o.schemas, name) }
}

// Supervisor names the function of the one goroutine that Postgres leaves running.
const Supervisor = pgtest.Supervisor
