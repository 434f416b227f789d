package driver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxgen/outboxgen/internal/postgres/bell"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/testing/faults/shop"
)

// serverKinds are what happens to PostgreSQL.
func serverKinds() []fault {
	of := func(kind string, cause func(context.Context, *driver, *rand.Rand) error) fault {
		return fault{kind, laneServer, 0, "", cause}
	}
	immediate := of("immediate restart", func(_ context.Context, d *driver, _ *rand.Rand) error { return d.server.Restart() })
	immediate.share = 50
	full := of("disk full", filled)
	full.needs = needsDisk
	return []fault{
		immediate,
		of("kill -9 of the postmaster", func(_ context.Context, d *driver, _ *rand.Rand) error {
			return errors.Join(d.server.Kill(), d.server.Restart())
		}),
		of("fast restart", fastRestart),
		of("terminate a backend of a worker", terminated("application_name = 'worker'", 1)),
		of("terminate all backends of workers", terminated("application_name = 'worker'", 1000)),
		of("terminate a backend that listens", terminated("query ILIKE 'LISTEN%'", 1)),
		of("terminate a backend of a writer", terminated("application_name = 'writer' AND state <> 'idle'", 1)),
		of("terminate a backend of a consumer", terminated("application_name = 'consumer'", 1)),
		of("read-only", role("default_transaction_read_only = on", "default_transaction_read_only", 1500*time.Millisecond)),
		of("statement_timeout by ALTER ROLE", role("statement_timeout = '15ms'", "statement_timeout", 2*time.Second)),
		of("lock_timeout by ALTER ROLE", role("lock_timeout = '1ms'", "lock_timeout", 2*time.Second)),
		of("idle_session_timeout by ALTER ROLE", role("idle_session_timeout = '200ms'", "idle_session_timeout", 2*time.Second)),
		of("serializable by ALTER ROLE", role("default_transaction_isolation = serializable", "default_transaction_isolation", 2*time.Second)),
		of("CONNECTION LIMIT", connectionLimit),
		of("too many connections", tooMany),
		of("held snapshot", heldSnapshot),
		of("prepared transaction left open", prepared),
		of("lock on a table", tableLocked),
		of("locks on rows", rowsLocked),
		of("storm of notifications", storm),
		of("statistics gone", statisticsGone),
		of("VACUUM FULL", maintained("VACUUM (FULL, ANALYZE) outbox.queue", "VACUUM (FULL, ANALYZE) outbox.listeners")),
		of("VACUUM and checkpoint", maintained("VACUUM (ANALYZE) outbox.queue", "VACUUM (ANALYZE) outbox.log", "CHECKPOINT")),
		of("REINDEX", maintained("REINDEX TABLE outbox.queue", "REINDEX TABLE outbox.log")),
		full,
	}
}

// persist repeats f until it succeeds: the server may be away because of another fault.
func persist(ctx context.Context, f func(context.Context) error) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, 20*time.Second)
		err := f(attempt)
		cancel()
		if err == nil {
			return nil
		}
		if pause(ctx, 100*time.Millisecond) != nil {
			return err
		}
	}
}

// undo repeats f until it succeeds, however long what has to be undone has taken.
func undo(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Minute)
	defer cancel()
	return persist(ctx, f)
}

// unset is exec for the end of a fault.
func (d *driver) unset(ctx context.Context, sql string) error {
	return undo(ctx, func(ctx context.Context) error {
		_, err := d.root.Exec(ctx, sql)
		return err
	})
}

// exec runs a statement in the database of the shop, as the superuser.
func (d *driver) exec(ctx context.Context, sql string, args ...any) error {
	return persist(ctx, func(ctx context.Context) error {
		_, err := d.root.Exec(ctx, sql, args...)
		return err
	})
}

// terminate ends sessions of processes.
func (d *driver) terminate(ctx context.Context, condition string, most int) error {
	return d.exec(ctx, `SELECT pg_terminate_backend(pid) FROM (
		SELECT pid FROM pg_stat_activity WHERE usename = $1 AND `+condition+` ORDER BY random() LIMIT $2
	) AS s`, application, most)
}

func terminated(condition string, most int) func(context.Context, *driver, *rand.Rand) error {
	return func(ctx context.Context, d *driver, _ *rand.Rand) error { return d.terminate(ctx, condition, most) }
}

func fastRestart(_ context.Context, d *driver, _ *rand.Rand) error {
	pid := d.server.Pid()
	if err := syscall.Kill(pid, syscall.SIGINT); err != nil { // what pg_ctl -m fast sends
		return fmt.Errorf("stop PostgreSQL: %w", err)
	}
	for until := time.Now().Add(20 * time.Second); syscall.Kill(pid, 0) == nil && time.Now().Before(until); {
		time.Sleep(10 * time.Millisecond)
	}
	return d.server.Restart()
}

// role changes a setting of the role of the processes for a while. Their sessions begin anew.
func role(set, reset string, length time.Duration) func(context.Context, *driver, *rand.Rand) error {
	return func(ctx context.Context, d *driver, _ *rand.Rand) error {
		err := d.exec(ctx, "ALTER ROLE "+application+" SET "+set)
		if err == nil {
			err = d.terminate(ctx, "true", 1000)
		}
		if err == nil {
			err = pause(ctx, length)
		}
		return errors.Join(err, d.unset(ctx, "ALTER ROLE "+application+" RESET "+reset), d.terminate(context.WithoutCancel(ctx), "true", 1000))
	}
}

func connectionLimit(ctx context.Context, d *driver, _ *rand.Rand) error {
	err := d.exec(ctx, "ALTER ROLE "+application+" CONNECTION LIMIT 4")
	if err == nil {
		err = d.terminate(ctx, "true", 1000)
	}
	if err == nil {
		err = pause(ctx, 2*time.Second)
	}
	return errors.Join(err, d.unset(ctx, "ALTER ROLE "+application+" CONNECTION LIMIT -1"))
}

// tooMany takes all connections that the server has for users, and ends those of the processes.
func tooMany(ctx context.Context, d *driver, _ *rand.Rand) error {
	var all []*pgx.Conn
	defer func() {
		for _, c := range all {
			_ = c.Close(ctx)
		}
	}()
	for range 2 {
		for len(all) < maxConnections {
			c, err := pgx.Connect(ctx, d.url("postgres", ""))
			if err != nil {
				break // there are no more
			}
			all = append(all, c)
		}
		if err := d.terminate(ctx, "application_name <> ''", 1000); err != nil {
			return err
		}
	}
	return pause(ctx, 1500*time.Millisecond)
}

// inTransaction holds a transaction of the superuser open for a while after some statements. If its session ends
// meanwhile, that is as good.
func (d *driver) inTransaction(ctx context.Context, length time.Duration, opts pgx.TxOptions, statements ...string) error {
	var tx pgx.Tx
	if err := persist(ctx, func(ctx context.Context) (err error) {
		if tx, err = d.root.BeginTx(context.WithoutCancel(ctx), opts); err != nil {
			return err
		}
		for _, sql := range statements {
			if _, err = tx.Exec(ctx, sql); err != nil {
				return errors.Join(err, tx.Rollback(ctx))
			}
		}
		return nil
	}); err != nil {
		return err
	}
	err := pause(ctx, length)
	_ = tx.Rollback(context.WithoutCancel(ctx)) // its session may have ended
	return err
}

func heldSnapshot(ctx context.Context, d *driver, r *rand.Rand) error {
	return d.inTransaction(ctx, upTo(r, 5*time.Second), pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, "SELECT count(*) FROM items", "SELECT pg_current_xact_id()")
}

// prepared leaves a transaction prepared that has written, which holds up whoever waits for all transactions.
func prepared(ctx context.Context, d *driver, r *rand.Rand) error {
	name := fmt.Sprintf("faults-%d", r.Int64())
	// Several statements in one message, so that they need no session of their own.
	if err := d.exec(ctx, "BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION '"+name+"'"); err != nil {
		return err
	}
	err := pause(ctx, upTo(r, 5*time.Second))
	return errors.Join(err, d.rollbackPrepared(ctx, name))
}

// rollbackPrepared rolls a prepared transaction back, also if an earlier attempt has, whose answer was lost.
func (d *driver) rollbackPrepared(ctx context.Context, name string) error {
	return undo(ctx, func(ctx context.Context) error {
		_, err := d.root.Exec(ctx, "ROLLBACK PREPARED '"+name+"'")
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Code == "42704" { // there is none
			return nil
		}
		return err
	})
}

func tableLocked(ctx context.Context, d *driver, r *rand.Rand) error {
	table := []string{"queue", "log", "listeners", "events", "delivered", "limit_usage"}[r.IntN(6)]
	return d.inTransaction(ctx, upTo(r, 2*time.Second), pgx.TxOptions{}, "LOCK TABLE outbox."+table+" IN ACCESS EXCLUSIVE MODE")
}

func rowsLocked(ctx context.Context, d *driver, r *rand.Rand) error {
	sql := []string{
		"SELECT id FROM outbox.queue ORDER BY id LIMIT 200 FOR UPDATE SKIP LOCKED", "SELECT listener FROM outbox.listeners FOR UPDATE",
		"SELECT item FROM items ORDER BY random() LIMIT 5 FOR UPDATE SKIP LOCKED",
	}[r.IntN(3)]
	return d.inTransaction(ctx, upTo(r, 2*time.Second), pgx.TxOptions{}, sql)
}

// storm notifies whoever sleeps, for nothing.
func storm(ctx context.Context, d *driver, _ *rand.Rand) error {
	s, err := schemadb.Open(schema)
	if err != nil {
		return err
	}
	for _, b := range []bell.Bell{bell.Of(s, shop.Namespace), bell.OfLog(s)} {
		if err := d.exec(ctx, "SELECT count(pg_notify($1, i::text)) FROM generate_series(1, 3000) AS i", b.Channel); err != nil {
			return err
		}
	}
	return nil
}

func statisticsGone(ctx context.Context, d *driver, _ *rand.Rand) error {
	return d.exec(ctx, "SET LOCAL allow_system_table_mods = on; DELETE FROM pg_statistic")
}

func maintained(statements ...string) func(context.Context, *driver, *rand.Rand) error {
	return func(ctx context.Context, d *driver, _ *rand.Rand) error {
		for _, sql := range statements {
			if err := d.exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	}
}

// filled leaves no byte on the disk of the server for a while. If the server does not survive that, it is started again.
func filled(ctx context.Context, d *driver, _ *rand.Rand) error {
	err := fill(d.Disk)
	if err == nil {
		err = pause(ctx, 1500*time.Millisecond)
	}
	if err := errors.Join(err, drain(d.Disk)); err != nil {
		return err
	}
	back, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if persist(back, d.root.Ping) != nil {
		return d.server.Restart()
	}
	return nil
}
