package admin

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/machine/doorbell"
	"github.com/outboxgen/outboxgen/internal/postgres/bell"
)

// notifyTime is how long a notification may take. It is longer than checkTime, because a busy machine must not look
// like a pooler.
const notifyTime = 5 * time.Second

// doctorBell is a channel that no process listens on.
const doctorBell = "outboxgen_doctor"

// listenPool returns a pool like the one that listens, and closes it with done.
func (e *examination) listenPool(ctx context.Context) (pool *pgxpool.Pool, done func(), err error) {
	if e.cfg.ListenPool == nil {
		return e.pool, func() {}, nil
	}
	pool, err = ownPool(ctx, e.cfg.ListenPool)
	if err != nil {
		return nil, nil, err
	}
	return pool, pool.Close, nil
}

// checkListen: a notification that the application's connection sends arrives at the one that listens.
func checkListen(ctx context.Context, e *examination) ([]Finding, error) {
	listen, done, err := e.listenPool(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	err = doorbell.Probe(ctx, &doorbell.Config{
		Bell: bell.Bell{Channel: doctorBell}, DB: e.db, Main: e.pool, Listen: listen, Log: slog.New(slog.DiscardHandler),
	}, notifyTime)
	switch {
	case err == nil || ctx.Err() != nil:
		return nil, err
	case errors.Is(err, doorbell.ErrNoNotifications):
		return []Finding{{
			Severity: SeverityWarning, Text: "notifications do not arrive: LISTEN succeeds, and a NOTIFY is not received",
			Means: "this is a transaction pooler, such as PgBouncer with pool_mode = transaction, or the listening connection " +
				"is on another database. Dispatchers and listeners poll instead, so events wait up to PollInterval",
			Fix: "give a direct connection as ListenPool (check it: outboxgen doctor --listen-url URL), or set Wake to " +
				"outbox.WakePoll; behind a pooler also set pgx's DefaultQueryExecMode to QueryExecModeExec",
		}}, nil
	}
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == "25006" {
		return nil, nil // a standby, as checkServer says
	}
	return []Finding{{
		Severity: SeverityWarning, Text: "cannot listen: " + err.Error(),
		Means: "dispatchers and listeners poll instead, so events wait up to PollInterval",
		Fix:   "give a connection that may listen as ListenPool, or set Wake to outbox.WakePoll",
	}}, nil
}

// checkSessions: a session of the connection that listens keeps its server process and its locks while another session
// is in a transaction. A transaction pooler gives its process to the other.
func checkSessions(ctx context.Context, e *examination) ([]Finding, error) {
	listen, done, err := e.listenPool(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	within, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	key := e.db.AdvisoryKey("doctor")
	session, err := listen.Acquire(within)
	if err != nil {
		return nil, err
	}
	defer session.Release()
	var locked bool
	if err := session.QueryRow(within, "SELECT pg_try_advisory_lock_shared($1)", key).Scan(&locked); err != nil {
		return nil, err
	}
	other, err := listen.Begin(within)
	if err != nil {
		return nil, err
	}
	defer func() { _ = other.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := other.Exec(within, "SELECT 1"); err != nil {
		return nil, err
	}
	const unlock = `SELECT CASE WHEN EXISTS (
		SELECT FROM pg_catalog.pg_locks AS l WHERE l.pid = pg_backend_pid() AND l.locktype = 'advisory'
		AND l.classid = ($1::bigint >> 32 & 4294967295)::oid AND l.objid = ($1::bigint & 4294967295)::oid AND l.objsubid = 1)
		THEN pg_advisory_unlock_shared($1) ELSE false END`
	var kept bool
	err = session.QueryRow(within, unlock, key).Scan(&kept)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err == nil && kept {
		return nil, nil
	}
	if !errors.Is(err, context.DeadlineExceeded) && err != nil {
		return nil, err
	}
	var freed bool
	// the lock is shared and its name unique, so it harms nobody if it stays
	_ = other.QueryRow(within, unlock, key).Scan(&freed)
	return []Finding{{
		Severity: SeverityWarning,
		Text:     "a session lost its advisory lock between two statements: another session got its server process",
		Means: "this is a transaction pooler, such as PgBouncer with pool_mode = transaction. What belongs to a session " +
			"does not work through it: LISTEN, session locks, SET, prepared statements",
		Fix: "give a direct connection as ListenPool (check it: outboxgen doctor --listen-url URL), or set Wake to " +
			"outbox.WakePoll; behind a pooler also set pgx's DefaultQueryExecMode to QueryExecModeExec",
	}}, nil
}
