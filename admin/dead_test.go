package admin_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// somebody is the Act of these tests.
var somebody = admin.Act{Who: "tester", Why: "test"}

// die commits n events of a tenant and makes them dead letters.
func die(t testing.TB, pool *pgxpool.Pool, n int) []queue.Claimed {
	t.Helper()
	store := runtimetest.NewStore(t, pool)
	runtimetest.EnqueueN(t, pool, n)
	claimed := runtimetest.ClaimN(t, store, n)
	failures := make([]queue.Failure, n)
	for i, c := range claimed {
		failures[i] = queue.Failure{Claimed: c, Err: outbox.Permanent(fmt.Errorf("no account %d", 1000+i))}
	}
	_, err := store.Nack(t.Context(), failures...)
	require.NoError(t, err)
	return claimed
}

// manyDead inserts n dead letters of the topic test/ping with their events, of 10 errors.
func manyDead(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	pgtest.Execute(t, pool, `WITH e AS (
			INSERT INTO outbox.events (namespace, topic, payload, tenant_id)
			SELECT 'test', 'ping', '{"text": "some hundred bytes of payload, as events have, and a little more to fill a row"}', gen_random_uuid()
			FROM generate_series(1, $1::int) RETURNING id, namespace, topic, version, payload, tenant_id, created_at)
		INSERT INTO outbox.dead_letters (id, namespace, topic, version, payload, tenant_id, created_at, attempts, max_attempts, claim_no, lane, error)
		SELECT id, namespace, topic, version, payload, tenant_id, created_at, 25, 25, 25, 3,
			'dial tcp 10.0.0.' || n % 250 || ':5432: kind ' || chr(97 + (n % 10)::int) || ': event ' || id || ' refused at 2026-11-22T10:00:00Z with "' || n || '" after ' || n || ' ms'
		FROM (SELECT e.*, row_number() OVER () AS n FROM e) AS e`, n)
}

func audits(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return pgtest.Value[string](t, pool, "SELECT coalesce(string_agg(concat_ws(' ', who, act, why, scope - 'selected', events), '; ' ORDER BY no), '') FROM outbox.audit")
}

func TestReplayPutsADeadEventBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	dead := die(t, pool, 3)
	pgtest.Execute(t, pool, "UPDATE outbox.dead_letters SET max_attempts = 7, lane = 9 WHERE id = $1", dead[0].ID)
	f := admin.Filter{IDs: []uuid.UUID{dead[0].ID}}
	r, err := a.Replay(t.Context(), f, admin.Act{DryRun: true})
	require.NoError(t, err)
	require.Equal(t, admin.Report{Matched: 1}, r)
	require.Equal(t, "dead", runtimetest.StateOf(t, pool, dead[0].ID).Status)
	require.Empty(t, audits(t, pool))

	r, err = a.Replay(t.Context(), f, somebody)
	require.NoError(t, err)
	require.Equal(t, admin.Report{Matched: 1, Done: 1}, r)
	state := runtimetest.StateOf(t, pool, dead[0].ID)
	require.Equal(t, runtimetest.EventState{Status: "pending", MaxAttempts: 7, ClaimNo: dead[0].ClaimNo + 1, LastError: "no account 1000"}, runtimetest.WithoutDue(state))
	require.LessOrEqual(t, state.DueIn, time.Duration(0), "due now")
	require.Equal(t, "9 1", pgtest.Value[string](t, pool, "SELECT lane || ' ' || jsonb_array_length(failures) FROM outbox.queue WHERE id = $1", dead[0].ID), "its lane, and its failures")
	require.Equal(t, "dead", runtimetest.StateOf(t, pool, dead[1].ID).Status)
	require.Equal(t, `tester replay test {"ids": ["`+dead[0].ID.String()+`"]} 1`, audits(t, pool))

	// What is not dead, or not there, is not selected.
	r, err = a.Replay(t.Context(), admin.Filter{IDs: []uuid.UUID{dead[0].ID, uuid.New()}}, somebody)
	require.NoError(t, err)
	require.Zero(t, r)
	store := runtimetest.NewStore(t, pool)
	again := runtimetest.ClaimN(t, store, 1)
	require.Equal(t, 1, again[0].Attempt)
	require.Equal(t, dead[0].Payload, again[0].Payload)
	_, err = store.Ack(t.Context(), again...)
	require.NoError(t, err)
	require.Equal(t, "delivered", runtimetest.StateOf(t, pool, dead[0].ID).Status)
}

// The lane and the turn of a topic with fairness stay, so that a replay of one tenant does not delay the others.
func TestReplayKeepsTheLane(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	store := runtimetest.NewStore(t, pool)
	var ms []outbox.Message
	for i := range 40 {
		m := runtimetest.Message(uuid.New(), i)
		m.Fairness = outbox.FairnessTenant
		ms = append(ms, m)
	}
	runtimetest.EnqueueAll(t, pool, ms...)
	const lanes = "SELECT string_agg(lane || ' ' || turn, ' ' ORDER BY id) FROM outbox.queue"
	before := pgtest.Value[string](t, pool, lanes)
	for i, c := range runtimetest.ClaimN(t, store, 40) {
		if i%2 == 0 {
			_, err := store.Nack(t.Context(), queue.Failure{Claimed: c, Err: outbox.Permanent(errors.New("no"))})
			require.NoError(t, err)
		}
	}
	pgtest.Execute(t, pool, "UPDATE outbox.queue SET attempts = max_attempts")
	runtimetest.ExpireLeases(t, pool)
	swept := 0
	pgtest.Eventually(t, func() bool {
		n, err := store.SweepDead(t.Context())
		require.NoError(t, err)
		pgtest.Execute(t, pool, "UPDATE outbox.queue SET updated_at = updated_at - interval '1 hour', locked_until = locked_until - interval '2 hours'")
		swept += n
		return swept == 20
	})
	r, err := runtimetest.AdminOf(t, pool).Replay(t.Context(), admin.Filter{}, somebody)
	require.NoError(t, err)
	require.Equal(t, admin.Report{Matched: 40, Done: 40}, r)
	require.Equal(t, before, pgtest.Value[string](t, pool, lanes))
}

// A process that still believes to hold the event settles nothing after the replay, neither before nor after the next claim.
func TestReplayRejectsTheOldHolder(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	worker := uuid.New()
	old := runtimetest.StoreOf(t, pool, worker)
	runtimetest.EnqueueN(t, pool, 1)
	held := runtimetest.ClaimN(t, old, 1)
	pgtest.Execute(t, pool, `WITH q AS (DELETE FROM outbox.queue RETURNING *)
		INSERT INTO outbox.dead_letters (id, namespace, topic, version, tenant_id, payload, created_at, attempts, max_attempts, claim_no, locked_by, lane, error)
		SELECT q.id, q.namespace, q.topic, q.version, q.tenant_id, e.payload, e.created_at, q.attempts, q.max_attempts, q.claim_no, q.locked_by, q.lane, 'lease ran out'
		FROM q JOIN outbox.events AS e ON e.id = q.id`) // as a sweep does
	_, err := a.Replay(t.Context(), admin.Filter{}, somebody)
	require.NoError(t, err)
	late := func() {
		t.Helper()
		_, err := old.Ack(t.Context(), held...)
		require.ErrorIs(t, err, outbox.ErrLeaseLost)
		_, err = old.Nack(t.Context(), queue.Failure{Claimed: held[0], Err: outbox.Permanent(errors.New("late"))})
		require.ErrorIs(t, err, outbox.ErrLeaseLost)
		_, err = old.Release(t.Context(), held...)
		require.ErrorIs(t, err, outbox.ErrLeaseLost)
		_, err = old.Extend(t.Context(), time.Hour, held...)
		require.ErrorIs(t, err, outbox.ErrLeaseLost)
	}
	late()
	require.Equal(t, "pending", runtimetest.StateOf(t, pool, held[0].ID).Status)
	again := runtimetest.ClaimN(t, runtimetest.StoreOf(t, pool, worker), 1) // even by the same worker id
	late()
	require.Equal(t, "processing", runtimetest.StateOf(t, pool, held[0].ID).Status)
	_, err = runtimetest.StoreOf(t, pool, worker).Ack(t.Context(), again...)
	require.NoError(t, err)
}

func TestEightReplaysPutAnEventBackOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	dead := die(t, pool, 700) // two chunks
	var handled sync.Map
	topic := outbox.NewTopic[struct{}](outbox.TopicSpec{Namespace: runtimetest.Namespace, Name: "ping", Version: 1})
	h := pings{&handled}
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), queue.Handle(topic, h, h.handle)))
	var group sync.WaitGroup
	var mu sync.Mutex
	done := int64(0)
	for range 8 {
		group.Go(func() {
			r, err := runtimetest.AdminOf(t, pgtest.AnotherPool(t, pool)).Replay(t.Context(), admin.Filter{}, somebody)
			if !pgtest.Check(t, err) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			done += r.Done
		})
	}
	group.Wait()
	require.EqualValues(t, len(dead), done)
	pgtest.Settles(t, pool, len(dead), runtimetest.DeliveredSQL)
	require.NoError(t, stop())
	for _, c := range dead {
		n, _ := handled.Load(c.ID)
		require.Equal(t, 1, n, "%s", c.ID)
	}
	require.EqualValues(t, len(dead), pgtest.Value[int64](t, pool, "SELECT sum(events)::bigint FROM outbox.audit WHERE act = 'replay'"))
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
}

// pings counts the calls per event.
type pings struct{ handled *sync.Map }

func (p pings) handle(_ context.Context, d outbox.Delivery[struct{}]) error {
	for {
		n, there := p.handled.LoadOrStore(d.ID, 1)
		if !there || p.handled.CompareAndSwap(d.ID, n, n.(int)+1) {
			return nil
		}
	}
}

// A replay that is rolled back leaves the event to one that waited for it.
func TestReplayWaitsForAnotherOne(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	dead := die(t, pool, 1)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "DELETE FROM outbox.dead_letters")
	require.NoError(t, err)
	over := make(chan admin.Report, 1)
	go func() {
		r, err := runtimetest.AdminOf(t, pgtest.AnotherPool(t, pool)).Replay(t.Context(), admin.Filter{}, somebody)
		pgtest.Check(t, err)
		over <- r
	}()
	pgtest.AwaitBlocked(t, pool, 1)
	require.NoError(t, tx.Rollback(t.Context()))
	require.EqualValues(t, 1, pgtest.Receive(t, over, "the replay").Done)
	require.Equal(t, "pending", runtimetest.StateOf(t, pool, dead[0].ID).Status)
}

func TestReplayOfEventsWhoseRowsWereDeleted(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	dead := die(t, pool, 4)
	pgtest.Execute(t, pool, "DELETE FROM outbox.events WHERE id = ANY ($1)", []uuid.UUID{dead[0].ID, dead[1].ID, dead[2].ID})
	pgtest.Execute(t, pool, "UPDATE outbox.dead_letters SET payload = 'null' WHERE id = $1", dead[2].ID)
	taker := runtimetest.Message(dead[1].TenantID.UUID, 0)
	taker.DedupeKey = dead[1].DedupeKey
	newer := runtimetest.EnqueueAll(t, pool, taker)[0]
	require.False(t, newer.Duplicate)
	r, err := a.Replay(t.Context(), admin.Filter{}, somebody)
	require.NoError(t, err)
	require.Equal(t, admin.Report{Matched: 4, Done: 2, Refused: map[string]int64{admin.RefusedKeyTaken: 1, admin.RefusedNoPayload: 1}}, r)
	require.Equal(t, "pending", runtimetest.StateOf(t, pool, dead[0].ID).Status)
	require.Equal(t, "pending", runtimetest.StateOf(t, pool, dead[3].ID).Status)
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters WHERE id = ANY ($1)", []uuid.UUID{dead[1].ID, dead[2].ID}))
	require.Equal(t, 0, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.event_status WHERE status IS NULL"))
	for _, c := range runtimetest.ClaimN(t, runtimetest.NewStore(t, pool), 3) {
		if c.ID == dead[0].ID {
			require.Equal(t, dead[0].Payload, c.Payload)
			require.Equal(t, dead[0].DedupeKey, c.DedupeKey)
			require.Equal(t, dead[0].CreatedAt, c.CreatedAt)
		}
	}
}

func TestReplaySelectsByFilter(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	dead := die(t, pool, 12)
	pgtest.Execute(t, pool, `INSERT INTO outbox.dead_letters (listener, seq, bucket, id, namespace, topic, version, payload, created_at, attempts, error)
		VALUES ('ears', 1, 0, $1, 'test', 'said', 1, '{}', now() - interval '1 hour', 3, 'handler failed')`, dead[0].ID)
	groups, err := a.DeadGroups(t.Context(), admin.Filter{})
	require.NoError(t, err)
	require.Len(t, groups, 2)
	require.Equal(t, admin.DeadGroup{
		ID: groups[0].ID, Namespace: "test", Topic: "ping", Count: 12, Error: groups[0].Error, Tenants: 1, FirstDiedAt: groups[0].FirstDiedAt, LastDiedAt: groups[0].LastDiedAt,
	}, groups[0])
	require.Contains(t, groups[0].Error, "no account 10")
	require.Equal(t, "ears test/said 1 handler failed", fmt.Sprint(groups[1].Listener, " ", groups[1].Namespace, "/", groups[1].Topic, " ", groups[1].Count, " ", groups[1].Error))
	tenant := dead[0].TenantID
	for what, c := range map[string]struct {
		filter admin.Filter
		want   int
	}{
		"all":         {admin.Filter{}, 13},
		"dead":        {admin.Filter{Status: admin.StatusDead}, 13},
		"namespace":   {admin.Filter{Namespace: "test"}, 13},
		"topic":       {admin.Filter{Namespace: "test", Topic: "ping"}, 12},
		"no topic":    {admin.Filter{Namespace: "test", Topic: "pong"}, 0},
		"listener":    {admin.Filter{Listener: "ears"}, 1},
		"tenant":      {admin.Filter{TenantID: tenant}, 12},
		"no tenant":   {admin.Filter{TenantID: outbox.Tenant(uuid.New())}, 0},
		"key":         {admin.Filter{Key: dead[4].DedupeKey}, 1},
		"ids":         {admin.Filter{IDs: []uuid.UUID{dead[0].ID, dead[1].ID, dead[1].ID}}, 3},
		"since":       {admin.Filter{Since: hoursAgo(0.5)}, 12},
		"until":       {admin.Filter{Until: hoursAgo(0.5)}, 1},
		"error":       {admin.Filter{Error: "account 1003"}, 1},
		"group":       {admin.Filter{Group: groups[0].ID}, 12},
		"small group": {admin.Filter{Group: groups[1].ID}, 1},
		"no group":    {admin.Filter{Group: "000000000000"}, 0},
		"two":         {admin.Filter{Listener: "ears", IDs: []uuid.UUID{dead[0].ID, dead[1].ID}}, 1},
	} {
		if c.filter.Listener == "" {
			r, err := a.Replay(t.Context(), c.filter, admin.Act{DryRun: true})
			require.NoError(t, err, what)
			require.EqualValues(t, c.want, r.Matched, what)
		}
		r, err := a.Discard(t.Context(), c.filter, admin.Act{DryRun: true})
		require.NoError(t, err, what)
		require.EqualValues(t, c.want, r.Matched, what)
		letters, err := a.DeadLetters(t.Context(), c.filter, 0, 100)
		require.NoError(t, err, what)
		require.Len(t, letters, c.want, what)
	}
	r, err := a.Preview().Replay(t.Context(), admin.Filter{}, admin.Act{Limit: 5})
	require.NoError(t, err)
	require.Equal(t, admin.Report{Matched: 5}, r)
	r, err = a.Replay(t.Context(), admin.Filter{}, admin.Act{Who: "tester", Limit: 5})
	require.NoError(t, err)
	require.Equal(t, admin.Report{Matched: 5, Done: 5}, r, "the oldest")
	require.Equal(t, 8, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
	require.Equal(t, `tester replay  {"limit": 5} 5`, audits(t, pool)[:len(`tester replay  {"limit": 5} 5`)])

	first, err := a.DeadLetters(t.Context(), admin.Filter{}, 0, 5)
	require.NoError(t, err)
	second, err := a.DeadLetters(t.Context(), admin.Filter{}, first[4].No, 5)
	require.NoError(t, err)
	require.Len(t, second, 3)
	require.Greater(t, first[4].No, second[0].No)
	require.Equal(t, "ears", first[0].Listener)
	require.NotEmpty(t, second[0].Failures)
}

func TestReplayRefusesBadArguments(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	for want, c := range map[string]struct {
		filter admin.Filter
		act    admin.Act
	}{
		"replay: act: Who is empty: say who does it":                             {},
		`replay: filter: topic "ping" needs its namespace`:                       {admin.Filter{Topic: "ping"}, somebody},
		"replay: filter: status pending does not fit dead letters: leave it out": {admin.Filter{Status: admin.StatusPending}, somebody},
		"replay: filter: an id is the zero UUID":                                 {admin.Filter{IDs: []uuid.UUID{{}}}, somebody},
		"replay: act: Limit -1 is negative":                                      {admin.Filter{}, admin.Act{Who: "x", Limit: -1}},
		"replay: act: Rate NaN is not a number of events per second":             {admin.Filter{}, admin.Act{Who: "x", Rate: math.NaN()}},
		`replay: unknown listener "ears": none is attached`:                      {admin.Filter{Listener: "ears"}, somebody},
	} {
		_, err := a.Replay(t.Context(), c.filter, c.act)
		require.EqualError(t, err, want)
	}
	_, err := a.Discard(t.Context(), admin.Filter{}, admin.Act{Who: "tester"})
	require.EqualError(t, err, "discard: act: Why is empty: say why the events may be lost")
	_, err = a.DeadLetters(t.Context(), admin.Filter{}, 0, 0)
	require.Error(t, err)
	elsewhere, err := admin.New(pool, "elsewhere")
	require.NoError(t, err)
	_, err = elsewhere.Replay(t.Context(), admin.Filter{}, somebody)
	require.ErrorIs(t, err, outbox.ErrNotMigrated)
}

func TestDiscardDeletesTheEventToo(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	dead := die(t, pool, 3)
	_, err := a.Replay(t.Context(), admin.Filter{IDs: []uuid.UUID{dead[1].ID}}, somebody)
	require.NoError(t, err)
	pgtest.Execute(t, pool, `INSERT INTO outbox.dead_letters (listener, seq, bucket, id, namespace, topic, version, payload, created_at, attempts, error)
		VALUES ('ears', 1, 0, $1, 'test', 'said', 1, '{}', now(), 3, 'handler failed')`, dead[1].ID)
	r, err := a.Discard(t.Context(), admin.Filter{}, somebody)
	require.NoError(t, err)
	require.Equal(t, admin.Report{Matched: 3, Done: 3}, r)
	require.Equal(t, 0, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
	require.Equal(t, dead[1].ID, pgtest.Value[uuid.UUID](t, pool, "SELECT id FROM outbox.event_status"), "no event without a state is left")
	require.Contains(t, audits(t, pool), "tester discard test {} 3")
	m := runtimetest.Message(dead[0].TenantID.UUID, 0)
	m.DedupeKey = dead[0].DedupeKey
	require.False(t, runtimetest.EnqueueAll(t, pool, m)[0].Duplicate, "its key is free")
}

func TestReplayEditedReplacesThePayload(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	dead := die(t, pool, 2)
	for text, payload := range map[string]string{"not valid JSON": `{"n": `, "NUL": `{"n": "\u0000"}`} {
		_, err := a.ReplayEdited(t.Context(), dead[0].ID, "", []byte(payload), somebody)
		require.ErrorContains(t, err, "replay edited: payload: ", text)
	}
	r, err := a.ReplayEdited(t.Context(), dead[0].ID, "", []byte(`{"n": 2}`), admin.Act{DryRun: true})
	require.NoError(t, err)
	require.Equal(t, admin.Report{Matched: 1}, r)
	before := runtimetest.Fingerprint(t, pool)
	_, err = a.ReplayEdited(t.Context(), uuid.New(), "", []byte(`{}`), somebody)
	require.ErrorIs(t, err, admin.ErrNotDead)
	require.Equal(t, before, runtimetest.Fingerprint(t, pool))

	r, err = a.ReplayEdited(t.Context(), dead[0].ID, "", []byte(`{"n": 2}`), somebody)
	require.NoError(t, err)
	require.Equal(t, admin.Report{Matched: 1, Done: 1}, r)
	require.Equal(t, `tester replay test {"id": "`+dead[0].ID.String()+`", "edited": true} 1`, audits(t, pool))
	_, err = a.ReplayEdited(t.Context(), dead[0].ID, "", []byte(`{"n": 3}`), somebody)
	require.ErrorIs(t, err, admin.ErrNotDead)
	c := runtimetest.ClaimN(t, runtimetest.NewStore(t, pool), 1)[0]
	require.Equal(t, dead[0].ID, c.ID)
	require.JSONEq(t, `{"n": 2}`, string(c.Payload))
	require.Equal(t, dead[0].DedupeKey, c.DedupeKey)
	require.Equal(t, dead[0].CreatedAt, c.CreatedAt)
	m := runtimetest.Message(dead[0].TenantID.UUID, 0)
	m.DedupeKey = dead[0].DedupeKey
	require.True(t, runtimetest.EnqueueAll(t, pool, m)[0].Duplicate, "its key is still taken")
}

// When ctx ends, the chunk that is under way is finished, and the report counts exactly what was done.
func TestReplayEndsBetweenChunks(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	manyDead(t, pool, 1700)
	ctx, cancel := context.WithCancel(t.Context())
	var seen []int64
	a := runtimetest.AdminOf(t, pool).WithProgress(func(done, total int64) {
		require.EqualValues(t, 1700, total)
		if seen = append(seen, done); len(seen) == 2 {
			cancel()
		}
	})
	r, err := a.Replay(ctx, admin.Filter{}, somebody)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, admin.Report{Matched: 1700, Done: 1000}, r)
	require.Equal(t, []int64{500, 1000}, seen)
	require.Equal(t, 1000, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue"))
	require.Equal(t, 700, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
	require.Equal(t, "tester replay test {} 1000", audits(t, pool))

	// In the middle of a chunk that waits for a lock: it is finished when it gets the lock.
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM outbox.dead_letters ORDER BY no LIMIT 1 FOR UPDATE")
	require.NoError(t, err)
	ctx, cancel = context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() {
		r, err = runtimetest.AdminOf(t, pgtest.AnotherPool(t, pool)).Replay(ctx, admin.Filter{}, somebody)
		over <- err
	}()
	pgtest.AwaitBlocked(t, pool, 1)
	cancel()
	require.NoError(t, tx.Rollback(t.Context()))
	require.ErrorIs(t, pgtest.Receive(t, over, "the end"), context.Canceled)
	require.Equal(t, admin.Report{Matched: 700, Done: 500}, r)
	require.Equal(t, 1500, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue"))
}

// A lock that is not released does not keep a replay that is to end.
func TestReplayEndsWithoutALock(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	die(t, pool, 1)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), "SELECT FROM outbox.dead_letters FOR UPDATE")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() {
		_, err := runtimetest.AdminOf(t, pgtest.AnotherPool(t, pool)).Replay(ctx, admin.Filter{}, somebody)
		over <- err
	}()
	pgtest.AwaitBlocked(t, pool, 1)
	cancel()
	require.ErrorIs(t, pgtest.Receive(t, over, "the end"), context.Canceled)
}

func TestReplayKeepsToItsRate(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	manyDead(t, pool, 60)
	began := time.Now()
	act := somebody
	act.Rate = 40
	r, err := runtimetest.AdminOf(t, pool).Replay(t.Context(), admin.Filter{}, act)
	require.NoError(t, err)
	require.Equal(t, admin.Report{Matched: 60, Done: 60}, r)
	require.GreaterOrEqual(t, time.Since(began), 1200*time.Millisecond, "the last ten begin after 50 at that rate")
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.audit"), "one row")
}

// Fifty thousand after an outage: they are grouped in about a second and replayed with a rate while a dispatcher works.
func TestFiftyThousandDeadLetters(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const letters = 50_000
	pool := pgtest.Database(t)
	manyDead(t, pool, letters)
	a := runtimetest.AdminOf(t, pool)
	began := time.Now()
	groups, err := a.DeadGroups(t.Context(), admin.Filter{})
	t.Logf("grouped in %s", time.Since(began))
	require.NoError(t, err)
	require.Len(t, groups, 10)
	for _, g := range groups {
		require.EqualValues(t, letters/10, g.Count)
		require.Equal(t, admin.MaxGroupTenants, g.Tenants)
	}
	act := somebody
	act.Rate = 20_000
	began = time.Now()
	r, err := a.Replay(t.Context(), admin.Filter{Group: groups[3].ID}, act)
	require.NoError(t, err)
	require.Equal(t, admin.Report{Matched: letters / 10, Done: letters / 10}, r)
	r, err = a.Replay(t.Context(), admin.Filter{Namespace: "test"}, act)
	t.Logf("replayed in %s", time.Since(began))
	require.NoError(t, err)
	require.Equal(t, admin.Report{Matched: letters * 9 / 10, Done: letters * 9 / 10}, r)
	require.GreaterOrEqual(t, time.Since(began), (letters-1000)*time.Second/20_000)
	require.Equal(t, letters, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue"))
}

// TestLatestDeadGroups: of many dead letters the latest are read, and more says that there are others.
func TestLatestDeadGroups(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	put := func(topic, text string, n int) {
		pgtest.Execute(t, pool, `INSERT INTO outbox.dead_letters (id, namespace, topic, version, payload, created_at, attempts, error)
			SELECT gen_random_uuid(), 'test', $1, 1, '{}', now(), 1, $2::text || ' ' || n FROM generate_series(1, $3::int) AS n`, topic, text, n)
	}
	groups, more, err := a.LatestDeadGroups(t.Context(), admin.Filter{}, 5)
	require.NoError(t, err)
	require.Empty(t, groups)
	require.False(t, more)
	put("old", "timeout", 5500)
	put("new", "refused", 10)
	for _, c := range []struct {
		f    admin.Filter
		most int
		want string
		more bool
	}{
		{most: 4, want: "test/new 4 refused 10;", more: true},
		{most: 10, want: "test/new 10 refused 10;", more: true},
		{most: 5000, want: "test/old 4990 timeout 5500;test/new 10 refused 10;", more: true},
		{most: 5509, want: "test/old 5499 timeout 5500;test/new 10 refused 10;", more: true},
		{most: 5510, want: "test/old 5500 timeout 5500;test/new 10 refused 10;"},
		{most: 100_000, want: "test/old 5500 timeout 5500;test/new 10 refused 10;"},
		{f: admin.Filter{Namespace: "test", Topic: "old"}, most: 11, want: "test/old 1 timeout 5500;", more: true},
		{f: admin.Filter{Namespace: "test", Topic: "old"}, most: 10, more: true},
	} {
		groups, more, err := a.LatestDeadGroups(t.Context(), c.f, c.most)
		require.NoError(t, err)
		got := ""
		for _, g := range groups {
			got += fmt.Sprintf("%s/%s %d %s;", g.Namespace, g.Topic, g.Count, g.Error)
		}
		require.Equal(t, c.want, got, c.most)
		require.Equal(t, c.more, more, c.most)
	}
	all, err := a.DeadGroups(t.Context(), admin.Filter{})
	require.NoError(t, err)
	latest, more, err := a.LatestDeadGroups(t.Context(), admin.Filter{}, 5510)
	require.NoError(t, err)
	require.False(t, more)
	require.Equal(t, all, latest)
	ids := pgtest.Value[[]uuid.UUID](t, pool, "SELECT array_agg(id) FROM (SELECT id FROM outbox.dead_letters ORDER BY no LIMIT 3) AS d")
	groups, more, err = a.LatestDeadGroups(t.Context(), admin.Filter{IDs: ids}, 1)
	require.NoError(t, err)
	require.EqualValues(t, 3, groups[0].Count, "all of the ids")
	require.False(t, more)
	_, _, err = a.LatestDeadGroups(t.Context(), admin.Filter{}, 0)
	require.EqualError(t, err, "group dead letters: 0 is not a positive number of dead letters")
}
