// Package migrate creates, upgrades and drops the tables of the outbox in a PostgreSQL schema. The migrations are part
// of the module, so a program needs no extra files:
//
//	applied, err := migrate.Up(ctx, pool, "outbox")
//
// Each migration runs in its own transaction, together with its entry in the table schema_migrations of the schema.
// Processes that migrate concurrently wait for each other. For users of another migration tool, Export returns the same
// migrations in its format.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/call/isnil"
	"github.com/outboxgen/outboxgen/internal/postgres/pgname"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
)

// DB is what migrations run on: a *pgx.Conn or a *pgxpool.Pool. A pooler in transaction mode works, because nothing
// outlives a transaction.
type DB interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// The ways in which a database can differ from the migrations of this module. They are wrapped in an *Error that names
// the migration.
var (
	// ErrDrift says that a migration was applied with a different text than the one in this module.
	ErrDrift = errors.New("checksum differs from the applied migration: run outboxgen doctor, which compares the " +
		"tables, with the outboxgen that applied it")
	// ErrUnknown says that the database has a migration that is not in this module.
	ErrUnknown = errors.New(
		"applied migration is not known to this version of outboxgen: a newer one applied it, so use that one or newer")
	// ErrPending says that a migration is not applied.
	ErrPending = errors.New("migration is not applied: run outboxgen migrate up")
)

// Error is about a migration that could not be applied or reverted, or that differs from the database.
type Error struct {
	Schema  string
	Version int
	Name    string
	Err     error
}

// Error returns "migrate schema outbox: 0001_events: " and the cause.
func (e *Error) Error() string {
	return fmt.Sprintf("migrate schema %s: %04d_%s: %v", e.Schema, e.Version, e.Name, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Up applies the migrations that are not applied yet, oldest first, and returns them. It creates the schema if it does
// not exist. A second Up applies nothing. If a migration fails, it is rolled back; those before it stay, and Up returns
// them and the error. Up refuses a database whose migrations have drifted. It accepts a database that a newer version
// of this module has migrated further, so a release can be rolled back without its migrations.
func Up(ctx context.Context, db DB, schema string) ([]Migration, error) {
	return released().up(ctx, db, schema)
}

// Down reverts the applied migrations with a version above to, newest first, and returns them. It drops their tables
// with all events in them. With version 0 it reverts everything, including schema_migrations, and keeps the schema,
// which may contain more than the outbox.
func Down(ctx context.Context, db DB, schema string, to int) ([]Migration, error) {
	return released().down(ctx, db, schema, to)
}

// Status returns every migration of this module and of the database with its state, by version. In a database without
// the schema all of them are pending. Status changes nothing.
func Status(ctx context.Context, db DB, schema string) ([]State, error) {
	return released().status(ctx, db, schema)
}

// Validate returns nil if the database has exactly the migrations of this module, else an error that joins one *Error
// per difference. An error that wraps outbox.ErrSequence says that the tables are correct, but the log does not number
// its events in the way that listeners need. It says what to do.
func Validate(ctx context.Context, db DB, schema string) error {
	return released().validate(ctx, db, schema)
}

// State is one migration as a database has it.
type State struct {
	Migration
	// AppliedAt is when the migration was applied, by the database's clock; zero if it is pending.
	AppliedAt time.Time
	// Err is nil for an applied migration, else ErrPending, ErrDrift or ErrUnknown.
	Err error
}

func (m migrations) up(ctx context.Context, db DB, schema string) ([]Migration, error) {
	var done []Migration
	for {
		next, err := m.step(ctx, db, schema)
		if err != nil {
			return done, err
		}
		if next == nil {
			return done, nil
		}
		done = append(done, *next)
	}
}

// step applies the first pending migration and returns it, or nil if none is pending.
func (m migrations) step(ctx context.Context, db DB, schema string) (*Migration, error) {
	var next *Migration
	err := transact(ctx, db, schema, pgx.ReadWrite, func(tx pgx.Tx) error {
		states, err := m.states(ctx, tx, schema)
		if err != nil {
			return err
		}
		for _, s := range states {
			switch {
			case errors.Is(s.Err, ErrDrift):
				return s.problem(schema)
			case errors.Is(s.Err, ErrPending) && next == nil:
				next = &s.Migration
			}
		}
		if next == nil {
			return nil
		}
		if err := next.apply(ctx, tx, schema); err != nil {
			return &Error{Schema: schema, Version: next.Version, Name: next.Name, Err: explain(err)}
		}
		return nil
	})
	return next, err
}

func (m migrations) down(ctx context.Context, db DB, schema string, to int) ([]Migration, error) {
	var done []Migration
	if to < 0 {
		return nil, fmt.Errorf("migrate schema %s: version %d: must not be negative", schema, to)
	}
	for {
		last, err := m.stepBack(ctx, db, schema, to)
		if err != nil {
			return done, err
		}
		if last == nil {
			return done, nil
		}
		done = append(done, *last)
	}
}

// stepBack reverts the newest applied migration above to and returns it. It returns nil if no migration is above to.
func (m migrations) stepBack(ctx context.Context, db DB, schema string, to int) (*Migration, error) {
	var last *Migration
	err := transact(ctx, db, schema, pgx.ReadWrite, func(tx pgx.Tx) error {
		states, err := m.states(ctx, tx, schema)
		if err != nil {
			return err
		}
		remaining := 0
		for _, s := range states {
			if errors.Is(s.Err, ErrPending) {
				continue
			}
			if s.Err != nil && s.Version > to {
				return s.problem(schema)
			}
			remaining++
			last = &s.Migration
		}
		if last == nil || last.Version <= to {
			last = nil
			return nil
		}
		if err := last.revert(ctx, tx, schema, remaining == 1); err != nil {
			return &Error{Schema: schema, Version: last.Version, Name: last.Name, Err: explain(err)}
		}
		return nil
	})
	return last, err
}

func (m migrations) status(ctx context.Context, db DB, schema string) ([]State, error) {
	var states []State
	err := transact(ctx, db, schema, pgx.ReadOnly, func(tx pgx.Tx) error {
		var err error
		states, err = m.states(ctx, tx, schema)
		return err
	})
	return states, err
}

func (m migrations) validate(ctx context.Context, db DB, schema string) error {
	states, err := m.status(ctx, db, schema)
	if err != nil {
		return err
	}
	var problems []error
	for _, s := range states {
		if s.Err != nil {
			problems = append(problems, s.problem(schema))
		}
	}
	if len(problems) > 0 {
		return errtext.Join(problems...)
	}
	return m.validateLog(ctx, db, schema)
}

// validateLog checks what the order of log topics depends on and no migration records: the sequence, which a restore or
// a copy may have left behind, and the column defaults that use it. It checks nothing for a role that may not read the
// log.
func (m migrations) validateLog(ctx context.Context, db DB, schema string) error {
	return transact(ctx, db, schema, pgx.ReadOnly, func(tx pgx.Tx) error {
		var there bool
		err := tx.QueryRow(ctx, `SELECT coalesce(has_table_privilege(to_regclass($1), 'SELECT')
			AND has_table_privilege(to_regclass($2), 'SELECT'), false)`, quote(schema)+".log",
			quote(schema)+".listeners").Scan(&there)
		if err != nil || !there {
			return err
		}
		s, err := schemadb.Open(schema)
		if err != nil {
			return err
		}
		_, _, err = s.CheckSequence(ctx, s.On(tx))
		return err
	})
}

func (s State) problem(schema string) *Error {
	return &Error{Schema: schema, Version: s.Version, Name: s.Name, Err: s.Err}
}

// transact runs fn in a transaction that holds the migration lock of the schema. The transaction is READ COMMITTED, so
// that fn sees what the previous holder of the lock has committed.
func transact(ctx context.Context, db DB, schema string, mode pgx.TxAccessMode, fn func(pgx.Tx) error) error {
	if err := pgname.Check(schema); err != nil {
		return err
	}
	if isnil.Is(db) {
		return fmt.Errorf("migrate schema %s: no pool or connection given (nil)", schema)
	}
	opts := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: mode}
	err := pgx.BeginTxFunc(ctx, db, opts, func(tx pgx.Tx) error {
		if err := prepare(ctx, tx, schema); err != nil {
			return err
		}
		return fn(tx)
	})
	if err == nil || errors.As(err, new(*Error)) {
		return err
	}
	return fmt.Errorf("migrate schema %s: %w", schema, err)
}

// oldestServer is the lowest server_version_num that the tables and queries support.
const oldestServer = 140000

// prepare takes the lock, refuses a server that is too old, and sets the search path, so that no name in a migration
// can refer to an object of the user.
func prepare(ctx context.Context, tx pgx.Tx, schema string) error {
	var number int
	var version string
	err := tx.QueryRow(ctx, `
		SELECT current_setting('server_version_num')::int, current_setting('server_version'),
		       pg_catalog.set_config('search_path', 'pg_catalog', true)`).Scan(&number, &version, nil)
	if err != nil {
		return err
	}
	if number < oldestServer {
		return fmt.Errorf("PostgreSQL %s is too old: use 14 or later", version)
	}
	_, err = tx.Exec(ctx, `WITH was AS MATERIALIZED (SELECT current_setting('lock_timeout') AS timeout)
		SELECT set_config('lock_timeout', CASE was.timeout WHEN '0' THEN $2 ELSE was.timeout END, true),
			pg_advisory_xact_lock($1), set_config('lock_timeout', was.timeout, true)
		FROM was`, lockKey(schema), lockTimeout)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "55P03" { // lock_not_available
		return fmt.Errorf("another session holds the lock of migrations: pg_locks shows which (locktype advisory, granted): %w", err)
	}
	return err
}

// lockTimeout is how long a migration waits for another one, unless the session has a lock_timeout.
const lockTimeout = "10min"

// lockKey is the advisory lock of migrations of one schema.
func lockKey(schema string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("outboxgen/migrate/" + schema)) // a hash never fails
	return int64(h.Sum64())
}

// explain adds advice to an error of PostgreSQL that a user can act on.
func explain(err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err
	}
	switch pgErr.Code {
	case "42P07": // duplicate_table
		return fmt.Errorf("%w: was the schema migrated by another tool?", err)
	case "42501": // insufficient_privilege
		return fmt.Errorf("%w: the role needs CREATE on the schema, or on the database if the schema does not exist yet", err)
	}
	return err
}
