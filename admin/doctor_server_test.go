package admin_test

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
)

// standby connects as a standby whose oldest query has the snapshot of now, with or without a slot.
func standby(t testing.TB, pool *pgxpool.Pool, slot string) {
	t.Helper()
	front := stream(t, pool, slot)
	xid := pgtest.Value[int64](t, pool, "SELECT pg_current_xact_id()::text::bigint")
	feedback := append([]byte{'h'}, make([]byte, 8)...)
	feedback = binary.BigEndian.AppendUint32(feedback, uint32(xid))
	feedback = append(feedback, make([]byte, 12)...) // the epoch, and no snapshot of the catalogs
	front.Send(&pgproto3.CopyData{Data: feedback})
	require.NoError(t, front.Flush())
}

// stream connects as a standby, with or without a slot.
func stream(t testing.TB, pool *pgxpool.Pool, slot string) *pgproto3.Frontend {
	t.Helper()
	cfg, err := pgconn.ParseConfig(pgtest.URL(t, pool))
	require.NoError(t, err)
	cfg.RuntimeParams["replication"], cfg.RuntimeParams["application_name"] = "true", "reports"
	conn, err := pgconn.ConnectConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if slot != "" {
		pgtest.Execute(t, pool, "SELECT pg_create_physical_replication_slot($1)", slot)
		slot = "SLOT " + slot
	}
	front := conn.Frontend()
	front.Send(&pgproto3.Query{String: "START_REPLICATION " + slot + " PHYSICAL " + pgtest.Value[string](t, pool, "SELECT pg_current_wal_lsn()::text")})
	require.NoError(t, front.Flush())
	message, err := front.Receive()
	require.NoError(t, err)
	require.IsType(t, &pgproto3.CopyBothResponse{}, message)
	return front
}

// TestDoctorOfOldSnapshots: what pins old row versions is named, with its age and what ends it.
func TestDoctorOfOldSnapshots(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	server := pgtest.Server(t, pgserver.Options{Settings: map[string]string{"max_prepared_transactions": "2"}})
	pool := pgtest.Pool(t, server.URL())
	_, err := migrate.Up(t.Context(), pool, "outbox")
	require.NoError(t, err)
	all := admin.DoctorConfig{OldTransaction: time.Nanosecond}
	require.Empty(t, diagnose(t, pool, all))

	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	pid := pgtest.Value[int](t, tx, "SELECT pg_backend_pid() WHERE pg_current_xact_id() IS NOT NULL")
	f := requireOne(t, diagnose(t, pool, all), "old snapshots", admin.SeverityError, `^session \d+ \(application ".*", role postgres, idle in transaction\) has been in one transaction for \d+ s, its latest statement began at `)
	require.Contains(t, f.Fix, "pg_terminate_backend(")
	require.Contains(t, f.Text, "session "+pgtest.Value[string](t, pool, "SELECT $1::int::text", pid))
	require.Empty(t, diagnose(t, pool, admin.DoctorConfig{}), "it is not five minutes old")
	pgtest.Eventually(t, func() bool { // the older it is, the longer it takes to become an error
		age := pgtest.Value[float64](t, pool, "SELECT extract(epoch FROM clock_timestamp() - xact_start)::float8 FROM pg_stat_activity WHERE pid = $1", pid)
		return diagnose(t, pool, admin.DoctorConfig{OldTransaction: time.Duration(age / 2 * float64(time.Second))})[0].Severity == admin.SeverityWarning
	})
	require.NoError(t, tx.Rollback(t.Context()))

	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := tx.Exec(t.Context(), "CREATE TABLE mine (); PREPARE TRANSACTION 'it''s mine'", pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
	})
	f = requireOne(t, diagnose(t, pool, all), "old snapshots", admin.SeverityError, `^prepared transaction "it's mine" of role postgres has been open for \d+ s$`)
	_, sql, _ := strings.Cut(f.Fix, ": ")
	pgtest.Execute(t, pool, sql)
	require.Empty(t, diagnose(t, pool, all))

	standby(t, pool, "reports")
	standby(t, pool, "")
	for range 20 {
		pgtest.Execute(t, pool, "SELECT pg_current_xact_id()")
	}
	for severity, bound := range map[admin.Severity]int64{admin.SeverityError: 1, admin.SeverityWarning: 10} {
		var found []admin.Finding
		pgtest.Eventually(t, func() bool {
			found = without(diagnose(t, pool, admin.DoctorConfig{}.WithPinned(bound)), "replication")
			return len(found) == 2
		})
		f = requireOne(t, found[:1], "old snapshots", severity, `^replication slot reports \(physical, active\) is \d+ transactions behind$`)
		require.Contains(t, f.Fix, "SELECT pg_drop_replication_slot('reports');")
		requireOne(t, found[1:], "old snapshots", severity, `^standby "reports" \(pid \d+\) has a query that is \d+ transactions old`)
	}
	require.Empty(t, without(diagnose(t, pool, admin.DoctorConfig{}), "replication"), "not a million behind")
}

// without leaves out the findings of a check.
func without(found []admin.Finding, check string) []admin.Finding {
	return slices.DeleteFunc(found, func(f admin.Finding) bool { return f.Check == check })
}

// TestDoctorOfReplication: a standby for which no commit waits is named while no other one exists, and a promotion is, for a
// day.
func TestDoctorOfReplication(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	server := pgtest.Server(t, pgserver.Options{})
	pool := pgtest.Pool(t, server.URL())
	_, err := migrate.Up(t.Context(), pool, "outbox")
	require.NoError(t, err)
	require.Empty(t, diagnose(t, pool, admin.DoctorConfig{}))

	front := stream(t, pool, "")
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")
	f := requireOne(t, diagnose(t, pool, admin.DoctorConfig{}), "replication", admin.SeverityNotice, `^standby "reports" replicates asynchronously, and is \d+ kB behind$`)
	require.Contains(t, f.Fix, "synchronous_standby_names")
	status := []byte{'r'}
	for range 3 { // written, flushed and applied: more than there will be, so that no commit waits
		status = binary.BigEndian.AppendUint64(status, 1<<40)
	}
	front.Send(&pgproto3.CopyData{Data: append(status, make([]byte, 9)...)}) // without a time, and without a request for an answer
	require.NoError(t, front.Flush())
	pgtest.Execute(t, pool, "ALTER SYSTEM SET synchronous_standby_names = 'reports'")
	pgtest.Execute(t, pool, "SELECT pg_reload_conf()")
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")
	require.Empty(t, diagnose(t, pool, admin.DoctorConfig{}))

	require.NoError(t, os.Remove(filepath.Join(server.Dir(), "data", "postgresql.auto.conf")))
	require.NoError(t, os.WriteFile(filepath.Join(server.Dir(), "data", "standby.signal"), nil, 0o644))
	require.NoError(t, server.Restart())
	pool.Reset()
	pgtest.Execute(t, pool, "SELECT pg_promote()")
	f = requireOne(t, diagnose(t, pool, admin.DoctorConfig{}), "replication", admin.SeverityNotice, `^timeline 00000002 began \d+ s ago, at `)
	require.Contains(t, f.Means, "what had not reached this server is lost")
	history := filepath.Join(server.Dir(), "data", "pg_wal", "00000002.history")
	yesterday := time.Now().Add(-25 * time.Hour)
	require.NoError(t, os.Chtimes(history, yesterday, yesterday))
	require.Empty(t, diagnose(t, pool, admin.DoctorConfig{}))
}

// TestDoctorOfWraparound: any database of the server that is old is named, with what keeps its rows from being frozen.
func TestDoctorOfWraparound(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	server := pgtest.Server(t, pgserver.Options{Settings: map[string]string{"autovacuum_freeze_max_age": "2000000000", "max_prepared_transactions": "1"}})
	pool := pgtest.Pool(t, server.URL())
	_, err := migrate.Up(t.Context(), pool, "outbox")
	require.NoError(t, err)
	for _, of := range []struct {
		age      string
		severity admin.Severity
	}{{"1100000000", admin.SeverityWarning}, {"1700000000", admin.SeverityError}} {
		pgtest.Execute(t, pool, `UPDATE pg_database SET datfrozenxid = ((pg_current_xact_id()::text::bigint + 4294967296 - `+of.age+`) % 4294967296)::text::xid WHERE datname = 'template1'`)
		f := requireOne(t, diagnose(t, pool, admin.DoctorConfig{}), "wraparound", of.severity, `^databases hold transaction ids that are old: template1 \(1[17]\d{8}\)$`)
		require.Contains(t, f.Fix, "find what pins old versions (check old snapshots), then: vacuumdb --all --freeze;")
	}
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := tx.Exec(t.Context(), "CREATE TABLE mine (); PREPARE TRANSACTION 'forgotten'", pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
	})
	for range 10 {
		pgtest.Execute(t, pool, "SELECT pg_current_xact_id()")
	}
	f := requireOne(t, diagnose(t, pool, admin.DoctorConfig{}.WithPinned(5)), "wraparound", admin.SeverityError, "template1")
	require.Regexp(t, `^end prepared transaction 'forgotten', which is \d+ transactions old, then: `, f.Fix)
}

// TestDoctorOfServers: the settings of a server that cannot be those of one database.
func TestDoctorOfServers(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	server := pgtest.Server(t, pgserver.Options{})
	pool := pgtest.Pool(t, server.URL())
	_, err := migrate.Up(t.Context(), pool, "outbox")
	require.NoError(t, err)
	ascii := func() []admin.Finding {
		pgtest.Execute(t, pool, "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
		pool := pgtest.Pool(t, server.URLOf("ascii"))
		_, err := migrate.Up(t.Context(), pool, "outbox")
		require.NoError(t, err)
		return diagnose(t, pool, admin.DoctorConfig{})
	}
	requireOne(t, ascii(), "server", admin.SeverityError, "^the encoding of the database is SQL_ASCII$")

	pgtest.Execute(t, pool, "ALTER SYSTEM SET autovacuum = off")
	pgtest.Execute(t, pool, "SELECT pg_reload_conf()")
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM pg_settings WHERE name = 'autovacuum' AND setting = 'off'")
	requireOne(t, diagnose(t, pool, admin.DoctorConfig{}), "server", admin.SeverityError, "^autovacuum is off and track_counts is on$")
	pgtest.Execute(t, pool, "ALTER SYSTEM RESET autovacuum")

	require.NoError(t, os.WriteFile(filepath.Join(server.Dir(), "data", "standby.signal"), nil, 0o644))
	require.NoError(t, server.Restart())
	pool.Reset()
	requireOne(t, diagnose(t, pool, admin.DoctorConfig{}), "server", admin.SeverityError, "^this server is a standby")
}

// TestDoctorOfVacuum: dead rows, room that is left, and old transaction ids.
func TestDoctorOfVacuum(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Plain(t)
	pgtest.Execute(t, pool, "ALTER TABLE outbox.queue SET (autovacuum_enabled = off)")
	f := requireOne(t, diagnose(t, pool, admin.DoctorConfig{}), "vacuum", admin.SeverityError, "^autovacuum is off for table queue, which has \\d+ dead rows$")
	require.Equal(t, `ALTER TABLE "outbox".queue RESET (autovacuum_enabled); VACUUM (ANALYZE) "outbox".queue;`, f.Fix)
	pgtest.Execute(t, pool, "ALTER TABLE outbox.queue RESET (autovacuum_enabled)")

	tx := pgtest.Begin(t, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}) // so that no vacuum removes them
	_, err := tx.Exec(t.Context(), "SELECT 1")
	require.NoError(t, err)
	pgtest.Execute(t, pool, "INSERT INTO outbox.delivered (id, namespace, topic, attempts) SELECT gen_random_uuid(), string_agg(md5(i::text || n), ''), 'b', 1 FROM generate_series(1, 40000) AS i, generate_series(1, 30) AS n GROUP BY i")
	pgtest.Execute(t, pool, "INSERT INTO outbox.events (id, namespace, topic, payload) SELECT id, namespace, topic, '{}' FROM outbox.delivered ORDER BY ctid DESC LIMIT 1")
	pgtest.Execute(t, pool, "DELETE FROM outbox.delivered AS d WHERE NOT EXISTS (SELECT FROM outbox.events AS e WHERE e.id = d.id)")
	var found []admin.Finding
	pgtest.Eventually(t, func() bool { // the statistics are written a little later
		found = slices.DeleteFunc(diagnose(t, pool, admin.DoctorConfig{}), func(f admin.Finding) bool { return f.Check == "bloat" })
		return len(found) > 0
	})
	requireOne(t, found, "vacuum", admin.SeverityWarning, `^table delivered has 39999 dead rows, and autovacuum starts at \d+: it was (never|last) vacuumed`)
	require.NoError(t, tx.Rollback(t.Context()))

	pgtest.Execute(t, pool, "VACUUM (ANALYZE) outbox.delivered")
	pgtest.Eventually(t, func() bool {
		found = slices.DeleteFunc(diagnose(t, pool, admin.DoctorConfig{}), func(f admin.Finding) bool { return f.Check == "vacuum" })
		return len(found) == 2
	})
	require.Contains(t, requireOne(t, found[:1], "bloat", admin.SeverityNotice, `^table delivered has \d\d MB, and its rows need about 0 MB$`).Fix, `VACUUM FULL "outbox".delivered;`)
	f = requireOne(t, found[1:], "bloat", admin.SeverityNotice, `^index delivered_age of delivered has \d\d MB, and its entries need about 0 MB$`)
	pgtest.Execute(t, pool, f.Fix)
	pgtest.Execute(t, pool, "VACUUM FULL outbox.delivered")
	require.Empty(t, slices.DeleteFunc(diagnose(t, pool, admin.DoctorConfig{}), func(f admin.Finding) bool { return f.Check == "vacuum" }))

	for age, severity := range map[string]admin.Severity{"1100000000": admin.SeverityWarning, "1700000000": admin.SeverityError} {
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			_, err := tx.Exec(t.Context(), `SET LOCAL allow_system_table_mods = on; UPDATE pg_class SET relfrozenxid = ((pg_current_xact_id()::text::bigint + 4294967296 - `+
				age+`) % 4294967296)::text::xid WHERE oid = 'outbox.audit'::regclass; COMMIT`, pgx.QueryExecModeSimpleProtocol)
			require.NoError(t, err)
		})
		found = slices.DeleteFunc(diagnose(t, pool, admin.DoctorConfig{}), func(f admin.Finding) bool { return f.Check == "vacuum" })
		f = requireOne(t, found, "wraparound", severity, `^tables hold transaction ids that are old: audit \(1[17]\d{8}\)$`)
		require.Contains(t, f.Fix, `VACUUM (FREEZE) "outbox".audit;`)
	}
}
