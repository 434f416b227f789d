// Package outboxtest helps to test code that enqueues and handles events: a database for the test, a
// look at what was enqueued, and a dispatcher run in the test's own goroutine.
package outboxtest

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/pgtest"
)

// Postgres returns a pool on a new database with the outbox in the schema "outbox". Nothing is shared
// with other tests, so that they may run in parallel; pool and database are gone when the test ends.
// Tables of your own are yours to create.
//
// The server is the one of OUTBOXGEN_TEST_DATABASE_URL, else of DATABASE_URL, whose role must be
// allowed to create databases; without either a private server is started from the PostgreSQL binaries
// of this machine and ends with the test process. A database takes some 50 ms, the first one of a
// process a second or two. Without any PostgreSQL the test fails with what to install.
//
// A test binary that looks for leaked goroutines must except the one that waits for the private
// server: goleak.IgnoreAnyFunction(outboxtest.Supervisor).
func Postgres(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return pgtest.Database(t)
}

// Supervisor names the function of the one goroutine that Postgres leaves running.
const Supervisor = pgtest.Supervisor
