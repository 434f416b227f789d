package admin_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// statusOf returns the only shard of the only listener.
func statusOf(t testing.TB, a *admin.Admin) admin.ListenerStatus {
	t.Helper()
	list, err := a.Listeners(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	return list[0]
}

// deadLetters returns the dead letters as "a1 attempts error", in order.
func deadLetters(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return pgtest.Value[string](t, pool, `SELECT coalesce(string_agg(concat(payload->>'key', payload->>'n', ' ', attempts, ' ', error), ', ' ORDER BY no), '')
		FROM outbox.dead_letters`)
}

func TestAdminRefusesABadSchema(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	_, err := admin.New(nil, "")
	require.EqualError(t, err, "new admin: no pool")
	_, err = admin.New(pgtest.Database(t), "no such")
	require.ErrorContains(t, err, "new admin: ")
	a, err := admin.New(pgtest.Database(t), "elsewhere")
	require.NoError(t, err)
	_, err = a.Listeners(t.Context())
	require.ErrorIs(t, err, outbox.ErrNotMigrated)
}

func TestAdminUnknownListenerNamesTheAttachedOnes(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	calls := map[string]func() error{
		"Pause": func() error { return a.Pause(t.Context(), admin.Scope{Listener: "ear"}, admin.Act{Who: "tester"}) },
		"Resume": func() error {
			_, err := a.Resume(t.Context(), admin.Scope{Listener: "ear"}, admin.Act{Who: "tester"})
			return err
		},
		"Skip":   func() error { _, err := a.Skip(t.Context(), "ear", uuid.Nil); return err },
		"Rewind": func() error { _, err := a.Rewind(t.Context(), "ear", time.Time{}); return err },
		"Detach": func() error { _, err := a.Detach(t.Context(), "ear"); return err },
	}
	for name, call := range calls {
		require.ErrorContains(t, call(), `unknown listener "ear": none is attached`, name)
	}
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Retry: runtimetest.LateRetry}, listener.Config{}, runtimetest.NewNotes()))
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Name: "eyes"}, listener.Config{}, runtimetest.NewNotes()))
	for name, call := range calls {
		err := call()
		require.ErrorContains(t, err, `unknown listener "ear": attached are ears, eyes`, name)
		var unknown *admin.UnknownListenerError
		require.ErrorAs(t, err, &unknown, name)
		require.Equal(t, []string{"ears", "eyes"}, unknown.Known)
	}
}

func TestAdminListsTheStateOfEachShard(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	list, err := a.Listeners(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)

	h := runtimetest.NewNotes()
	l := runtimetest.ListenTo(t, pool, listener.Spec{MaxLag: time.Hour, Retry: outbox.Retry{MaxAttempts: 2, BaseDelay: time.Hour, MaxDelay: time.Hour}}, listener.Config{}, h)
	runtimetest.DrainAll(t, l)
	s := statusOf(t, a)
	require.Equal(t, admin.ListenerStatus{
		Listener: "ears", Shards: 1, State: admin.ListenerIdle, MaxLag: time.Hour, AttachedAt: s.AttachedAt,
	}, s)
	require.WithinDuration(t, time.Now(), s.AttachedAt, time.Minute)

	runtimetest.PutAll(t, pool, "a1", "a2", "b1")
	s = statusOf(t, a)
	require.Equal(t, admin.ListenerWaiting, s.State, "nobody holds it")
	require.EqualValues(t, 3, s.Unread)
	require.Positive(t, s.Lag)

	h.Fail = runtimetest.FailFor("b")
	runtimetest.DrainAll(t, l)
	s = statusOf(t, a)
	require.Equal(t, admin.ListenerBlocked, s.State)
	require.EqualValues(t, 1, s.Unread)
	require.Equal(t, 1, s.Attempts)
	require.Equal(t, "handler failed", s.LastError)
	require.Equal(t, uuid.NullUUID{UUID: runtimetest.IDOf(t, pool, "b1"), Valid: true}, s.Head)
	require.False(t, s.RetryAfter.IsZero())
	require.False(t, s.AdvancedAt.IsZero())
	require.EqualValues(t, 2, s.Position)

	runtimetest.RetryNow(t, pool)
	runtimetest.DrainAll(t, l)
	s = statusOf(t, a)
	require.Equal(t, admin.ListenerIdle, s.State)
	require.EqualValues(t, 1, s.DeadLetters)
	require.Zero(t, s.Attempts)
	require.Zero(t, s.Lag)

	pgtest.Execute(t, pool, "UPDATE outbox.log SET created_at = created_at - interval '2 hours'")
	runtimetest.PutAll(t, pool, "a3")
	require.Equal(t, admin.ListenerWaiting, statusOf(t, a).State, "what is old was handled")
	pgtest.Execute(t, pool, "UPDATE outbox.log SET created_at = created_at - interval '2 hours'")
	s = statusOf(t, a)
	require.Equal(t, admin.ListenerLagging, s.State)
	require.InDelta(t, 2, s.Lag.Hours(), 0.1)

	pgtest.Execute(t, pool, "INSERT INTO outbox.pauses (listener, who, until) VALUES ('ears', 'tester', now() - interval '1 ms')")
	require.NotEqual(t, admin.ListenerPaused, statusOf(t, a).State, "it has ended")
	pgtest.Execute(t, pool, "UPDATE outbox.pauses SET until = NULL")
	require.Equal(t, admin.ListenerPaused, statusOf(t, a).State)
	pgtest.Execute(t, pool, "UPDATE outbox.listeners SET system_id = 1")
	require.Equal(t, admin.ListenerRestored, statusOf(t, a).State)
}

func TestAdminListsHoldersAndParkedEvents(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("a", "b")
	worker := uuid.New()
	l := runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: true, Retry: runtimetest.LateRetry, Shards: 4, MaxLag: time.Hour}, listener.Config{WorkerID: worker}, h)
	runtimetest.PutAll(t, pool, "a1", "a2", "b1", "c1")
	runtimetest.DrainAll(t, l)
	pgtest.Execute(t, pool, "UPDATE outbox.parked SET created_at = created_at - interval '2 hours' WHERE payload->>'key' = 'b'")
	list, err := a.Listeners(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 4)
	byShard := make(map[int]admin.ListenerStatus)
	keys, events := int64(0), int64(0)
	for i, s := range list {
		require.Equal(t, i, s.Shard)
		require.Equal(t, 4, s.Shards)
		keys, events = keys+s.ParkedKeys, events+s.ParkedEvents
		byShard[i] = s
	}
	require.EqualValues(t, 2, keys)
	require.EqualValues(t, 3, events)
	shardOf := func(key string) admin.ListenerStatus {
		return byShard[pgtest.Value[int](t, pool, "SELECT bucket % 4 FROM outbox.log WHERE payload->>'key' = $1 LIMIT 1", key)]
	}
	require.EqualValues(t, 2, shardOf("a").ParkedEvents)
	require.Equal(t, admin.ListenerLagging, shardOf("b").State, "a parked event is not handled")

	h.Hold = make(chan struct{})
	stop := runtimetest.StartListener(t, l)
	runtimetest.Put(t, pool, "c", 2)
	for len(h.Started) > 0 {
		<-h.Started
	}
	require.Equal(t, "c", pgtest.Receive(t, h.Started, "the handler").Payload.Key)
	list, err = a.Listeners(t.Context())
	require.NoError(t, err)
	byShard[shardOf("c").Shard] = list[shardOf("c").Shard]
	require.Equal(t, admin.ListenerRunning, shardOf("c").State)
	require.Equal(t, uuid.NullUUID{UUID: worker, Valid: true}, shardOf("c").Holder)
	require.True(t, shardOf("c").LeaseUntil.After(time.Now()))
	close(h.Hold)
	stop()
}

// The list reads a few rows per cursor, however long the log is.
func TestAdminListReadsLittleOfALongLog(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b")
	for _, name := range []string{"first", "second"} {
		runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Name: name, Shards: 8, Retry: runtimetest.LateRetry}, listener.Config{}, h))
	}
	runtimetest.PutAll(t, pool, "a1", "b1")
	for _, name := range []string{"first", "second"} {
		runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Name: name, Shards: 8, Retry: runtimetest.LateRetry}, listener.Config{}, h))
	}
	pgtest.Execute(t, pool, `INSERT INTO outbox.log (namespace, topic, payload, bucket)
		SELECT 'test', 'said', '{}', n % 32768 FROM generate_series(1, 100000) AS n`)
	pgtest.Execute(t, pool, "ANALYZE outbox.log")
	for query, args := range map[string][]any{
		queries.ListenerList: nil,
		queries.ListenerHead: {int32(1), true, "first"},
	} {
		rows, err := pool.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS) "+strings.ReplaceAll(query, "outbox_schema", "outbox"),
			append([]any{pgx.QueryExecModeExec}, args...)...)
		require.NoError(t, err)
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.NotRegexp(t, `Seq Scan on log\b`, strings.Join(plan, "\n"))
	}
	list, err := runtimetest.AdminOf(t, pool).Listeners(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 16)
	require.EqualValues(t, 12_500, list[0].Unread)
}

func TestAdminPausesAndResumes(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	// It polls once per hour, so only the doorbell wakes it.
	l := runtimetest.ListenTo(t, pool, listener.Spec{Shards: 2}, listener.Config{LeaseDuration: 3 * time.Hour, PollInterval: time.Hour}, h)
	h.Hold = make(chan struct{})
	stop := runtimetest.StartListener(t, l)
	runtimetest.Put(t, pool, "a", 1)
	pgtest.Receive(t, h.Started, "the handler")
	runtimetest.Pause(t, a, admin.Scope{Listener: "ears"})
	runtimetest.Pause(t, a, admin.Scope{Listener: "ears"})
	runtimetest.Put(t, pool, "a", 2)
	runtimetest.Put(t, pool, "b", 1)
	runtimetest.Put(t, pool, "c", 1)
	close(h.Hold)
	h.Await(t, 1)
	pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.listeners WHERE running")
	require.Equal(t, []string{"a1"}, h.Names(), "what was begun is finished, and nothing else")

	runtimetest.Resume(t, a, admin.Scope{Listener: "ears"})
	h.Await(t, 4)
	r, err := a.Resume(t.Context(), admin.Scope{Listener: "ears"}, admin.Act{Who: "tester"})
	require.NoError(t, err)
	require.Equal(t, admin.ResumeReport{}, r, "again")
	stop()
	require.ElementsMatch(t, []string{"a1", "a2", "b1", "c1"}, h.Names())
}

// A preview of each method changes nothing.
func TestAdminPreviewChangesNothing(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b")
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Retry: runtimetest.LateRetry}, listener.Config{}, h))
	runtimetest.PutAll(t, pool, "a1", "b1", "a2")
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Retry: runtimetest.LateRetry}, listener.Config{}, h))
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Name: "eyes", ParkKeys: true, Retry: runtimetest.LateRetry}, listener.Config{}, h))
	pgtest.Execute(t, pool, "UPDATE outbox.log SET created_at = created_at - interval '1 year'")
	const everything = `SELECT md5(string_agg(line, E'\n' ORDER BY line)) FROM (
		SELECT l::text AS line FROM outbox.listeners AS l UNION ALL SELECT g::text FROM outbox.log AS g
		UNION ALL SELECT p::text FROM outbox.parked AS p UNION ALL SELECT p::text FROM outbox.pauses AS p UNION ALL SELECT a::text FROM outbox.audit AS a
		UNION ALL SELECT d::text FROM outbox.dead_letters AS d) AS o`
	before := pgtest.Value[string](t, pool, everything)

	p := a.Preview()
	require.NoError(t, p.Pause(t.Context(), admin.Scope{Listener: "ears"}, admin.Act{}))
	e, err := p.Skip(t.Context(), "ears", uuid.Nil)
	require.NoError(t, err)
	require.Equal(t, runtimetest.IDOf(t, pool, "b1"), e.ID)
	n, err := p.Rewind(t.Context(), "ears", time.Time{})
	require.NoError(t, err)
	require.EqualValues(t, 3, n)
	d, err := p.Detach(t.Context(), "eyes")
	require.NoError(t, err)
	require.Equal(t, admin.DetachReport{Shards: 1, Parked: 1}, d)
	r, err := p.Prune(t.Context(), map[string]outbox.Retention{"test/said": {}})
	require.NoError(t, err)
	require.Equal(t, admin.PruneReport{Log: 1, Blocked: 2, BlockedBy: map[string]int64{"ears": 2}}, r)
	require.Equal(t, before, pgtest.Value[string](t, pool, everything))
}

func TestAdminDetaches(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
		switch d.Payload.Key {
		case "b":
			return runtimetest.ErrHandler
		case "c":
			return outbox.Permanent(runtimetest.ErrHandler)
		}
		return nil
	}
	l := runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: true, Retry: runtimetest.LateRetry, Shards: 2}, listener.Config{}, h)
	other := runtimetest.NewNotes()
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Name: "eyes"}, listener.Config{}, other))
	runtimetest.PutAll(t, pool, "a1", "b1", "b2", "c1")
	runtimetest.DrainAll(t, l)
	over := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { over <- l.Run(ctx) }()
	runtimetest.Put(t, pool, "a", 2)
	h.Await(t, 2)
	pgtest.Settles(t, pool, 2, "SELECT count(*) FROM outbox.parked")

	r, err := a.Detach(t.Context(), "ears")
	require.NoError(t, err)
	require.Equal(t, admin.DetachReport{Shards: 2, Parked: 2}, r)
	require.EqualError(t, pgtest.Receive(t, over, "Run"), "run listener ears: the listener was detached")
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.parked"))
	require.Equal(t, "c1 1 handler failed", deadLetters(t, pool))
	require.Equal(t, "eyes", statusOf(t, a).Listener)
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Name: "eyes"}, listener.Config{}, other))
	require.Equal(t, []string{"a1", "b1", "b2", "c1", "a2"}, other.Names(), "the other listener continues")

	h.Fail = nil
	runtimetest.DrainAll(t, l)
	require.ElementsMatch(t, []string{"a1", "a2", "a1", "b1", "b2", "c1", "a2"}, h.Names(), "it is new, and starts at the earliest")
}

// A process that still holds a detached listener cannot write anything for it.
func TestAdminDetachesWhileAHandlerRuns(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	h.Hold = make(chan struct{})
	h.Fail = func(outbox.Delivery[runtimetest.Said]) error { return runtimetest.ErrHandler }
	l := runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: true, Retry: runtimetest.LateRetry}, listener.Config{}, h)
	over := make(chan error, 1)
	go func() { over <- l.Run(t.Context()) }()
	runtimetest.Put(t, pool, "a", 1)
	pgtest.Receive(t, h.Started, "the handler")
	_, err := a.Detach(t.Context(), "ears")
	require.NoError(t, err)
	close(h.Hold)
	require.ErrorContains(t, pgtest.Receive(t, over, "Run"), "the listener was detached")
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.parked"))
}

func TestAdminReportsTroubleWithTheDatabase(t *testing.T) {
	t.Parallel()
	a := runtimetest.AdminOf(t, pgtest.Database(t))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("gone"))
	for name, call := range map[string]func() error{
		"list listeners":  func() error { _, err := a.Listeners(ctx); return err },
		"pause listener":  func() error { return a.Pause(ctx, admin.Scope{Listener: "ears"}, admin.Act{Who: "tester"}) },
		"skip event":      func() error { _, err := a.Skip(ctx, "ears", uuid.Nil); return err },
		"rewind listener": func() error { _, err := a.Rewind(ctx, "ears", time.Time{}); return err },
		"detach listener": func() error { _, err := a.Detach(ctx, "ears"); return err },
		"rebase listener": func() error { _, err := a.Rebase(ctx); return err },
		"prune log": func() error {
			_, err := a.Prune(ctx, map[string]outbox.Retention{"test/said": {}})
			return err
		},
	} {
		err := call()
		require.ErrorIs(t, err, context.Canceled)
		require.True(t, strings.HasPrefix(err.Error(), name), err.Error())
	}
}
