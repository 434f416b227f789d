package listener_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
)

// refused requires that a listener and `migrate validate` reject the sequence, and that both name fix as the remedy.
func refused(t *testing.T, pool *pgxpool.Pool, h *runtimetest.Notes, fix string) {
	t.Helper()
	_, err := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, h).Drain(t.Context())
	require.ErrorIs(t, err, outbox.ErrSequence)
	require.ErrorContains(t, err, fix)
	err = migrate.Validate(t.Context(), pool, pgtest.Schema)
	require.ErrorIs(t, err, outbox.ErrSequence)
	require.ErrorContains(t, err, fix)
}

// A sequence that is behind the log, as a restore of data alone or a logical copy leaves it, is detected. Rebase
// advances it, and events that were enqueued behind the cursors meanwhile are handled too.
func TestSequenceBehindTheLogIsFoundAndRebased(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, h)
	runtimetest.PutAll(t, pool, "a1", "a2", "a3", "a4", "a5", "a6")
	runtimetest.DrainAll(t, l)
	pgtest.Execute(t, pool, "DELETE FROM outbox.log WHERE seq < 4")
	pgtest.Execute(t, pool, "SELECT setval('outbox.log_seq', 1)")
	runtimetest.PutAll(t, pool, "b1", "b2") // at 2 and 3, which the cursor has passed
	refused(t, pool, h, "run `outboxgen listener rebase --yes`")

	a := runtimetest.AdminOf(t, pool)
	r, err := a.Preview().Rebase(t.Context())
	require.NoError(t, err)
	require.True(t, r.Needed)
	require.EqualValues(t, 2, r.Behind)
	refused(t, pool, h, "run `outboxgen listener rebase --yes`")
	r, err = a.Rebase(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, r.Behind)
	require.NoError(t, migrate.Validate(t.Context(), pool, pgtest.Schema))
	runtimetest.PutAll(t, pool, "b3")
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"a1", "a2", "a3", "a4", "a5", "a6", "b1", "b2", "b3"}, h.Names())
	r, err = a.Rebase(t.Context())
	require.NoError(t, err)
	require.False(t, r.Needed)
}

// The log may be empty, like a copy of an empty log. Then the cursors show that the sequence is behind.
func TestSequenceBehindACursorIsFound(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, h)
	runtimetest.PutAll(t, pool, "a1", "a2")
	runtimetest.DrainAll(t, l)
	pgtest.Execute(t, pool, "TRUNCATE outbox.log")
	pgtest.Execute(t, pool, "ALTER SEQUENCE outbox.log_seq RESTART")
	refused(t, pool, h, "outboxgen listener rebase")
	_, err := runtimetest.AdminOf(t, pool).Rebase(t.Context())
	require.NoError(t, err)
	runtimetest.PutAll(t, pool, "a3")
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"a1", "a2", "a3"}, h.Names())
}

// A listener that runs while the sequence is set back does not take leases in a loop, and logs what is wrong.
func TestSequenceSetBackUnderAListener(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	logs := &runtimetest.LogSpy{}
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{PruneInterval: pgtest.Interval, PollInterval: pgtest.Interval, Logger: logs.Logger()}, h)
	signals := listener.Watch(l)
	runtimetest.StartListener(t, l)
	runtimetest.PutAll(t, pool, "a1", "a2")
	h.Await(t, 2)
	pgtest.Execute(t, pool, "INSERT INTO outbox.log (seq, namespace, topic, payload) SELECT 1000 + n, 'test', 'said', '{}' FROM generate_series(1, 20) AS n")
	for range 2 {
		pgtest.Receive(t, signals.Idle, "an idle listener")
	}
	before := pgtest.Value[int](t, pool, "SELECT lease_no FROM outbox.listeners")
	for range 20 {
		pgtest.Receive(t, signals.Maintained, "maintenance")
	}
	require.Equal(t, before, pgtest.Value[int](t, pool, "SELECT lease_no FROM outbox.listeners"))
	require.Regexp(t, `level=ERROR msg="statement fails: it is tried again" .*during="check the sequence" error=.*is at 2, but the log or a listener has reached 1020`, logs.String())
}

// The sequence and defaults that the order of the log depends on must be as the migration defines them.
func TestSequenceOrDefaultsOfAnotherKindAreRefused(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const sequence = "run `ALTER SEQUENCE \"outbox\".log_seq INCREMENT 1 CACHE 1 NO CYCLE`"
	const defaults = "ALTER COLUMN seq SET DEFAULT CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('\"outbox\".log_seq') END`"
	for change, fix := range map[string]string{
		"ALTER SEQUENCE outbox.log_seq CACHE 32":                                               sequence,
		"ALTER SEQUENCE outbox.log_seq CYCLE":                                                  sequence,
		"ALTER SEQUENCE outbox.log_seq INCREMENT 2":                                            sequence,
		"ALTER TABLE outbox.log ALTER COLUMN seq SET DEFAULT nextval('outbox.log_seq')":        defaults,
		"ALTER TABLE outbox.log ALTER COLUMN seq DROP DEFAULT":                                 defaults,
		"ALTER TABLE outbox.log ALTER COLUMN xid SET DEFAULT '3'::xid8":                        defaults,
		"CREATE SEQUENCE other; ALTER TABLE outbox.log ALTER seq SET DEFAULT nextval('other')": defaults,
	} {
		t.Run(change, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			_, err := pool.Exec(t.Context(), change)
			require.NoError(t, err)
			refused(t, pool, runtimetest.NewNotes(), fix)
			pgtest.Execute(t, pool, "ALTER SEQUENCE \"outbox\".log_seq INCREMENT 1 CACHE 1 NO CYCLE")
			pgtest.Execute(t, pool, `ALTER TABLE "outbox".log ALTER COLUMN xid SET DEFAULT pg_current_xact_id(), ALTER COLUMN seq SET DEFAULT
				CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('"outbox".log_seq') END`)
			require.NoError(t, migrate.Validate(t.Context(), pool, pgtest.Schema))
			runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, runtimetest.NewNotes()))
		})
	}
}
