package statements_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/statements"
)

// What no case shows, because it is about sessions: settings that end with a transaction, locks, and who sees whom.

// sessions opens sessions in a new database.
func sessions(t *testing.T, count int) ([]*pgx.Conn, *schemadb.Schema) {
	t.Helper()
	url := pgtest.URL(t, pgtest.Plain(t))
	var conns []*pgx.Conn
	for range count {
		conn, err := pgx.Connect(t.Context(), url)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })
		conns = append(conns, conn)
	}
	schema, err := schemadb.Open(pgtest.Schema)
	require.NoError(t, err)
	return conns, schema
}

// settings returns all settings of a session.
func settings(t *testing.T, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}) map[string]string {
	t.Helper()
	rows, err := db.Query(t.Context(), "SELECT name, current_setting(name) FROM pg_settings")
	require.NoError(t, err)
	all := map[string]string{}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		all[name] = value
		return nil
	})
	require.NoError(t, err)
	return all
}

// TestSettingsEndWithTheirTransaction: what a statement sets holds for the rest of the transaction, and not longer.
func TestSettingsEndWithTheirTransaction(t *testing.T) {
	t.Parallel()
	conns, schema := sessions(t, 1)
	conn := conns[0]
	path := map[string]string{"search_path": "pg_catalog, pg_temp"}
	guarded := map[string]string{
		"search_path": "pg_catalog, pg_temp", "synchronous_commit": "on", "enable_indexscan": "on", "enable_indexonlyscan": "on",
		"enable_nestloop": "on", "enable_seqscan": "off", "enable_bitmapscan": "off", "enable_hashjoin": "off",
		"enable_mergejoin": "off", "plan_cache_mode": "force_generic_plan", "jit": "off",
	}
	_, err := conn.Exec(t.Context(), `SET search_path = public; SET synchronous_commit = off; SET enable_indexscan = off; SET enable_indexonlyscan = off;
		SET enable_nestloop = off; SET enable_seqscan = on; SET enable_hashagg = off; SET enable_sort = on; SET enable_bitmapscan = on; SET enable_hashjoin = on; SET enable_mergejoin = on;
		SET plan_cache_mode = auto; SET jit = on; SET lock_timeout = 0; SET outboxgen.search_path = 'before'; SET outboxgen.bell = 'before'`)
	require.NoError(t, err)
	for _, c := range []struct {
		name string
		call func(context.Context, *queries.Queries) error
		want map[string]string
	}{
		{"SessionGuard", func(ctx context.Context, q *queries.Queries) error { return q.SessionGuard(ctx) }, guarded},
		{"SessionPath", func(ctx context.Context, q *queries.Queries) error { return q.SessionPath(ctx) }, path},
		{"SessionPathKeep", func(ctx context.Context, q *queries.Queries) error { return q.SessionPathKeep(ctx) }, nil},
		{"SessionPathRestore", func(ctx context.Context, q *queries.Queries) error { return q.SessionPathRestore(ctx) }, map[string]string{"search_path": "before"}},
		{"ListenerLock", func(ctx context.Context, q *queries.Queries) error { return q.ListenerLock(ctx, 7) }, nil},
		{
			"BellPatience", func(ctx context.Context, q *queries.Queries) error {
				return q.BellPatience(ctx, queries.BellPatienceParams{WaitMs: 3, LockKey: 7})
			},
			map[string]string{"lock_timeout": "3ms"},
		},
		{"LimitLock", func(ctx context.Context, q *queries.Queries) error { return q.LimitLock(ctx, 8) }, nil},
		{
			"ScanWhole", func(ctx context.Context, q *queries.Queries) error { return q.ScanWhole(ctx) },
			map[string]string{"enable_seqscan": "on", "enable_hashagg": "on", "enable_sort": "off"},
		},
	} {
		if c.name == "ScanWhole" { // it switches on what SessionGuard has switched off
			_, err := conn.Exec(t.Context(), "SET enable_seqscan = off")
			require.NoError(t, err)
		}
		before := settings(t, conn)
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		require.NoError(t, c.call(t.Context(), schema.On(tx)), c.name)
		during := settings(t, tx)
		for name, value := range before {
			want, set := c.want[name]
			if !set {
				want = value
			}
			require.Equal(t, want, during[name], "%s: %s", c.name, name)
		}
		require.NoError(t, tx.Commit(t.Context()))
		require.Equal(t, before, settings(t, conn), c.name)
		var path, bell string
		require.NoError(t, conn.QueryRow(t.Context(),
			"SELECT current_setting('outboxgen.search_path'), current_setting('outboxgen.bell')").Scan(&path, &bell))
		require.Equal(t, [2]string{"before", "before"}, [2]string{path, bell}, c.name)
	}
}

// TestBellLockedSeesOnlyTheBell: it is the lock with both halves of the key, exclusive, held or waited for, and of this
// database.
func TestBellLockedSeesOnlyTheBell(t *testing.T) {
	t.Parallel()
	conns, schema := sessions(t, 4)
	asks, holds, waits, late := conns[0], conns[1], conns[2], conns[3]
	const high, low = -0x1234567, 0x89abcdef
	const key int64 = high<<32 | low // the halves of it are above the largest signed number of 32 bits
	ask := func() queries.BellLockedRow {
		got, err := schema.OnQuerier(asks).BellLocked(t.Context(), key)
		require.NoError(t, err)
		return got
	}
	both := queries.BellLockedRow{Locked: true, Awaited: true}
	none, held, awaited := queries.BellLockedRow{}, queries.BellLockedRow{Locked: true}, queries.BellLockedRow{Awaited: true}
	exec := func(conn *pgx.Conn, sql string) {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	lock := func(function string, key int64) string { return fmt.Sprintf("SELECT %s(%d)", function, key) }
	require.Equal(t, none, ask())
	for _, other := range []string{
		lock("pg_advisory_lock", (high+1)<<32|low), lock("pg_advisory_lock", high<<32|(low-1)), lock("pg_advisory_lock", low),
		lock("pg_advisory_lock_shared", key), fmt.Sprintf("SELECT pg_advisory_lock(%d, %d)", high, low-1<<32),
	} {
		exec(holds, other)
		require.Equal(t, none, ask(), other)
		exec(holds, "SELECT pg_advisory_unlock_all()")
	}
	exec(holds, lock("pg_advisory_lock_shared", key))
	done := make(chan error, 1)
	go func() {
		_, err := waits.Exec(t.Context(), lock("pg_advisory_lock", key))
		done <- err
	}()
	require.Eventually(t, func() bool {
		var waiting bool
		err := asks.QueryRow(t.Context(), "SELECT count(waitstart) = 1 FROM pg_locks WHERE NOT granted AND pid = $1", waits.PgConn().PID()).Scan(&waiting)
		return err == nil && waiting
	}, pgtest.Patience, time.Millisecond)
	var began time.Time
	require.NoError(t, holds.QueryRow(t.Context(), "SELECT waitstart FROM pg_locks WHERE NOT granted AND pid = $1", waits.PgConn().PID()).Scan(&began))
	for got := ask(); got != awaited; got = ask() {
		require.Equal(t, none, got)
		require.Less(t, time.Since(began), pgtest.Patience)
	}
	require.GreaterOrEqual(t, time.Since(began), 5*time.Millisecond, "as long as the wait for short transactions, and more")
	lateDone := make(chan error, 1)
	go func() {
		_, err := late.Exec(t.Context(), lock("pg_advisory_lock", key))
		lateDone <- err
	}()
	for waiting := 0; waiting < 2; {
		require.Equal(t, awaited, ask(), "also while another has just begun to wait")
		require.NoError(t, asks.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = ANY($1)",
			[]int64{int64(waits.PgConn().PID()), int64(late.PgConn().PID())}).Scan(&waiting))
	}
	require.Equal(t, awaited, ask())
	exec(holds, "SELECT pg_advisory_unlock_all()")
	require.NoError(t, pgtest.Receive(t, done, "the lock"))
	exec(waits, "SELECT pg_advisory_unlock_all()")
	require.NoError(t, pgtest.Receive(t, lateDone, "the lock"))
	exec(late, "SELECT pg_advisory_unlock_all()")
	exec(waits, lock("pg_advisory_lock", key))
	require.Equal(t, held, ask())
	go func() {
		_, err := holds.Exec(t.Context(), lock("pg_advisory_lock", key))
		done <- err
	}()
	require.Eventually(t, func() bool { return ask() == both }, pgtest.Patience, time.Millisecond, "another waits behind it")
	exec(waits, "SELECT pg_advisory_unlock_all()")
	require.NoError(t, pgtest.Receive(t, done, "the lock"))
	require.Equal(t, held, ask())
	others, _ := sessions(t, 1)
	got, err := schema.OnQuerier(others[0]).BellLocked(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, none, got, "a lock of another database")
}

// TestSnapshotHolderIsTheOldest: it is the session that has been in its transaction for longest, and for long enough, if
// that has a snapshot or an xid.
func TestSnapshotHolderIsTheOldest(t *testing.T) {
	t.Parallel()
	conns, schema := sessions(t, 4)
	asks := conns[0]
	holder := func(openFor time.Duration) int32 {
		rows, err := schema.OnQuerier(asks).SnapshotHolder(t.Context(), pgtype.Interval{Microseconds: openFor.Microseconds(), Valid: true})
		require.NoError(t, err)
		if len(rows) == 0 {
			return 0
		}
		require.Len(t, rows, 1)
		return rows[0].Pid
	}
	exec := func(conn *pgx.Conn, sql string) {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	require.Zero(t, holder(-time.Hour), "its own session, and sessions without a transaction")
	exec(conns[3], "BEGIN")
	require.Zero(t, holder(-time.Hour), "a transaction without a snapshot and an xid")
	exec(conns[1], "BEGIN; SELECT pg_current_xact_id()")
	require.Equal(t, int32(conns[1].PgConn().PID()), holder(-time.Hour), "an xid")
	exec(conns[2], "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
	require.Equal(t, int32(conns[1].PgConn().PID()), holder(-time.Hour), "the oldest")
	require.Zero(t, holder(time.Hour), "not for as long")
	age := func() (us int64) {
		require.NoError(t, conns[3].QueryRow(t.Context(), `SELECT (extract(epoch FROM clock_timestamp() - xact_start) * 1000000)::bigint
			FROM pg_stat_activity WHERE pid = $1`, conns[1].PgConn().PID()).Scan(&us))
		return us
	}
	exec(conns[3], "ROLLBACK")
	for old := false; !old; { // until the time between two looks is little
		before := age()
		rows, err := schema.OnQuerier(asks).SnapshotHolder(t.Context(), pgtype.Interval{Valid: true})
		require.NoError(t, err)
		after := age()
		require.GreaterOrEqual(t, rows[0].AgeUs, before)
		require.LessOrEqual(t, rows[0].AgeUs, after)
		old = before > 2*(after-before)
	}
	exec(conns[1], "ROLLBACK")
	require.Equal(t, int32(conns[2].PgConn().PID()), holder(-time.Hour), "a snapshot")
	others, _ := sessions(t, 1)
	rows, err := schema.OnQuerier(others[0]).SnapshotHolder(t.Context(), pgtype.Interval{Microseconds: -time.Hour.Microseconds(), Valid: true})
	require.NoError(t, err)
	require.Empty(t, rows, "sessions of another database")
}

// TestRateCountsForAPeriod: what starts is counted until a period after the latest time at which it may start, and not much
// longer.
func TestRateCountsForAPeriod(t *testing.T) {
	t.Parallel()
	conns, schema := sessions(t, 1)
	tx, err := conns[0].Begin(t.Context())
	require.NoError(t, err)
	q := schema.On(tx)
	require.NoError(t, q.ListenerRateAdd(t.Context(), "l1"))
	span := func(d time.Duration) pgtype.Interval {
		return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
	}
	const slack, period, grain = time.Minute, time.Hour, 10 * time.Minute
	var before, after time.Time
	require.NoError(t, tx.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&before))
	got, err := q.ListenerRateTake(t.Context(), queries.ListenerRateTakeParams{
		Events: 2, Want: 1, Slack: span(slack), Period: span(period), Grain: span(grain), Listener: "l1",
	})
	require.NoError(t, err)
	require.NoError(t, tx.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&after))
	require.NoError(t, tx.Rollback(t.Context()))
	require.Equal(t, int32(1), got.N)
	require.True(t, got.Until.Time.After(before.Add(slack+period)))
	require.False(t, got.Until.Time.After(after.Add(slack+period+grain)))
}

// TestChainsAreFoundByIndexes: each part of FindByCorrelation finds its events by the beginning of the header.
func TestChainsAreFoundByIndexes(t *testing.T) {
	t.Parallel()
	conns, schema := sessions(t, 1)
	all, err := statements.Queries(queriesDir)
	require.NoError(t, err)
	find := all[slices.IndexFunc(all, func(s statements.Statement) bool { return s.Unit == "FindByCorrelation" })]
	tx, err := conns[0].Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, schema.On(tx).SessionGuard(t.Context()))
	rows, err := tx.Query(t.Context(), "EXPLAIN "+schema.Text(find.Text), []string{"c1"}, time.Now(), uuid.Nil, 10, 10)
	require.NoError(t, err)
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	found := slices.DeleteFunc(plan, func(line string) bool {
		return !strings.Contains(line, "Index Cond:") || !strings.Contains(line, `= "left"(c.correlation, 100)`)
	})
	require.Len(t, found, 4)
	require.NoError(t, tx.Rollback(t.Context()))
}

// TestEventIDTellsItsTime: an id of version 7 has the millisecond in its first 48 bits, and its fraction in the next 12.
func TestEventIDTellsItsTime(t *testing.T) {
	t.Parallel()
	conns, schema := sessions(t, 1)
	rows, err := conns[0].Query(t.Context(), schema.Text(`SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
		outbox_schema.event_id()::text, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM generate_series(1, 2000)`))
	require.NoError(t, err)
	var before, after int64
	var text string
	_, err = pgx.ForEachRow(rows, []any{&before, &text, &after}, func() error {
		id := uuid.MustParse(text)
		require.Equal(t, uuid.Version(7), id.Version())
		require.Equal(t, uuid.RFC4122, id.Variant())
		ms := int64(id[0])<<40 | int64(id[1])<<32 | int64(id[2])<<24 | int64(id[3])<<16 | int64(id[4])<<8 | int64(id[5])
		us := ms*1000 + ((int64(id[6])&0xf<<8|int64(id[7]))*1000+4095)/4096
		require.GreaterOrEqual(t, us, before)
		require.LessOrEqual(t, us, after)
		return nil
	})
	require.NoError(t, err)
}

// TestConsumerOwnsItsTransaction: a transaction that a consumer has begun cannot be committed while it is open, whoever
// commits it. Transactions of others can.
func TestConsumerOwnsItsTransaction(t *testing.T) {
	t.Parallel()
	conns, schema := sessions(t, 1)
	for n, c := range []struct{ setting, commit, code string }{
		{"", "", ""}, {"open", "", "2D000"}, {"open", "commit", ""}, {"commit", "", ""}, {"", "open", ""}, {"commit", "open", ""},
	} {
		tx, err := conns[0].Begin(t.Context())
		require.NoError(t, err)
		set := func(value string) {
			_, err := tx.Exec(t.Context(), "SELECT set_config('outboxgen.tx', $1, true) WHERE $1 <> ''", value)
			require.NoError(t, err)
		}
		set(c.setting)
		_, err = tx.Exec(t.Context(), schema.Text("INSERT INTO outbox_schema.processed_events (consumer_group, event_id) VALUES ('g', $1)"), uuid.New())
		require.NoError(t, err)
		set(c.commit)
		err = tx.Commit(t.Context())
		if c.code == "" {
			require.NoError(t, err, "%d: %v", n, c)
			continue
		}
		var refused *pgconn.PgError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, c.code, refused.Code)
		require.Contains(t, refused.Hint, "Return nil to commit")
	}
}

// TestWakeRingsOnlySleepers: it notifies the channel of the name if a session sleeps with the doorbell, and has the shared
// lock of that otherwise.
func TestWakeRingsOnlySleepers(t *testing.T) {
	t.Parallel()
	conns, schema := sessions(t, 2)
	db, sleeper := conns[0], conns[1]
	sum := sha256.Sum256([]byte("outboxgen:" + pgtest.Schema + "/mini_chat"))
	key := binary.BigEndian.Uint64(sum[:8])
	exec := func(conn *pgx.Conn, sql string) {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	// got tells whether a notification is there: the one that is sent behind it comes second.
	got := func() string {
		exec(sleeper, "NOTIFY last")
		n, err := sleeper.WaitForNotification(t.Context())
		require.NoError(t, err)
		if n.Channel != "last" {
			_, err = sleeper.WaitForNotification(t.Context())
			require.NoError(t, err)
		}
		return n.Channel
	}
	channel := fmt.Sprintf("outboxgen_%016x", key)
	exec(sleeper, "LISTEN last; LISTEN "+channel)
	wake := schema.Text("SELECT outbox_schema.wake('mini_chat')")
	exec(db, "BEGIN; "+wake)
	var mode string
	err := db.QueryRow(t.Context(), "SELECT mode FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()").Scan(&mode)
	require.NoError(t, err)
	require.Equal(t, "ShareLock", mode, "other transactions enqueue at the same time")
	var free bool
	require.NoError(t, sleeper.QueryRow(t.Context(), "SELECT pg_try_advisory_lock($1)", int64(key)).Scan(&free))
	require.False(t, free, "nobody goes to sleep before the transaction has ended")
	exec(db, "COMMIT")
	require.Equal(t, "last", got())
	exec(sleeper, fmt.Sprintf("SELECT pg_advisory_lock(%d)", int64(key)))
	exec(db, wake)
	require.Equal(t, channel, got())
}

// TestLogIsNumberedInOrder: the schema draws the numbers of the log one by one, each behind the xid.
func TestLogIsNumberedInOrder(t *testing.T) {
	t.Parallel()
	conns, schema := sessions(t, 1)
	got, err := schema.OnQuerier(conns[0]).LogSequence(t.Context())
	require.NoError(t, err)
	require.True(t, got.Plain, "in steps of 1, with none in store, and without beginning again")
	require.True(t, got.Drawn)
}
