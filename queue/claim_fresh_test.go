package queue

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// The two statements of a claim agree, whatever the table holds: EventClaimFresh takes what EventClaim takes without
// reclaimed events, and changes the rows in the same way. Both take from every lane.
func TestClaimFreshIsAClaimWithoutReclaimedEvents(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const events = 60
	pool := pgtest.Database(t)
	s, err := NewStore(pool, StoreConfig{Namespace: "test"})
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `
		INSERT INTO testing.events (lane, namespace, topic, tenant_id, payload, headers, status, attempts, max_attempts, next_attempt_at, locked_by, locked_until, finalized_at)
		SELECT n % 3, CASE WHEN n % 13 = 0 THEN 'other' ELSE 'test' END, 't' || n % 3, CASE WHEN n % 2 = 0 THEN md5((n % 4)::text)::uuid END,
			to_jsonb(n), CASE WHEN n % 5 = 0 THEN '{"a": "b"}'::jsonb END, u.status, n % 4, 1 + n % 5, now() + (n % 10 - 8) * interval '1 h',
			CASE WHEN u.status = 'processing' THEN gen_random_uuid() END,
			CASE WHEN u.status = 'processing' THEN now() + (n % 3 - 1) * interval '1 h' END,
			CASE WHEN u.status IN ('delivered', 'dead') THEN now() END
		FROM generate_series(1, $1) AS n, LATERAL (SELECT (array['pending', 'pending', 'pending', 'processing', 'delivered', 'dead'])[1 + n * 7 % 6] AS status) AS u`, events)
	require.NoError(t, err)

	var places []core.Place
	rows, err := pool.Query(t.Context(), "SELECT next_attempt_at, id FROM testing.events")
	require.NoError(t, err)
	var p core.Place
	var id pgtype.UUID
	_, err = pgx.ForEachRow(rows, []any{&p.Due, &id}, func() error {
		places = append(places, core.Place{Due: p.Due, ID: id.Bytes})
		return nil
	})
	require.NoError(t, err)

	random := rand.New(rand.NewPCG(1, 2))
	taken := 0
	for round := range 300 {
		if round == 200 { // no row order is the right one by accident
			_, err = pool.Exec(t.Context(), "DROP INDEX outbox.queue_due")
			require.NoError(t, err)
		}
		c := &claim{Claim: core.Claim{Size: events}, lease: time.Hour, maxAttempts: random.IntN(4)}
		if random.IntN(2) == 0 {
			c.Topics = []string{"t1", "t2"}[:1+random.IntN(2)]
		}
		if random.IntN(3) == 0 {
			c.tenants = []uuid.UUID{uuid.MustParse("cfcd2084-95d5-65ef-66e7-dff9f98764da")} // md5('0')
		}
		lanes := 1 + random.IntN(3)
		for n := range lanes {
			c.Starts = append(c.Starts, core.Start{Lane: int32(n), Quota: events, Piece: 10 * events})
		}
		all := claimed(t, s, pool, func(q *queries.Queries) { _, _ = q.EventClaim(t.Context(), s.claimParams(c)) })
		for i := range c.Starts {
			c.Starts[i].Piece = 0
		}
		got := claimed(t, s, pool, func(q *queries.Queries) { s.claimFrom(t.Context(), q, c) })
		require.Equal(t, all, got)
		taken += len(got.claimed)
		c.Size = random.IntN(10) + 1
		for i := range c.Starts {
			if random.IntN(2) == 0 {
				c.Starts[i].After = places[random.IntN(len(places))]
			}
			c.Starts[i].Quota = random.IntN(c.Size) + 1
		}
		got = claimed(t, s, pool, func(q *queries.Queries) { s.claimFrom(t.Context(), q, c) })
		requireInTurn(t, c, all.claimed, got)
		for i := range c.Starts {
			c.Starts[i].Quota, c.Starts[i].Piece = max(c.Size/lanes, 1), 1+random.IntN(2*c.Size)
		}
		want := claimed(t, s, pool, func(q *queries.Queries) { _, _ = q.EventClaim(t.Context(), s.claimParams(c)) })
		requireShared(t, c, all.claimed, want)
		if lanes == 1 {
			c.Starts[0].Quota, c.Starts[0].Piece = c.Size, 10*events
			want = claimed(t, s, pool, func(q *queries.Queries) { _, _ = q.EventClaim(t.Context(), s.claimParams(c)) })
			c.Starts[0].Piece = 0
			got = claimed(t, s, pool, func(q *queries.Queries) { s.claimFrom(t.Context(), q, c) })
			require.Equal(t, want.claimed, got.claimed)
			require.Equal(t, want.table, got.table)
		}
	}
	require.Greater(t, taken, 300)

	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	c := &claim{Claim: core.Claim{Size: events, Starts: []core.Start{{Lane: 0, Quota: events}, {Lane: 1, Quota: events}, {Lane: 2, Quota: events}}}, lease: time.Hour}
	fresh := func() []*Claimed {
		return claimed(t, s, pool, func(q *queries.Queries) { s.claimFrom(t.Context(), q, c) }).claimed
	}
	all := fresh()
	_, err = tx.Exec(t.Context(), "SELECT FROM outbox.queue WHERE id = $1 FOR UPDATE", pgvalue.UUID(all[0].ID))
	require.NoError(t, err)
	require.Equal(t, all[1:], fresh(), "what is locked is passed over")
}

// traces holds what a claim returned, and what the table holds after it except for the times that the claim set.
type traces struct {
	claimed []*Claimed
	ends    map[int32]core.Place
	table   []*string
}

// walked returns which of all, the events that could be claimed, a claim of c meets in each lane.
func walked(c *claim, all []*Claimed, ends map[int32]core.Place) map[int32][]*Claimed {
	m := make(map[int32][]*Claimed)
	for _, s := range c.Starts {
		for _, e := range all {
			end, ended := ends[s.Lane]
			if e.lane == s.Lane && placeOf(e).Compare(s.After) > 0 && (!ended || placeOf(e).Compare(end) <= 0) {
				m[s.Lane] = append(m[s.Lane], e)
			}
		}
	}
	return m
}

// requireShared checks a claim of EventClaim: from each lane the oldest of its piece, as many as fit, and no lane less than
// its quota while another has more.
func requireShared(t *testing.T, c *claim, all []*Claimed, got traces) {
	t.Helper()
	met, took := walked(c, all, got.ends), walked(&claim{Claim: core.Claim{Starts: c.Starts}}, got.claimed, nil)
	possible := 0
	for _, s := range c.Starts {
		n := len(took[s.Lane])
		require.Equal(t, ids(met[s.Lane][:n]), ids(took[s.Lane]), "the oldest of the lane")
		possible += len(met[s.Lane])
		if len(c.Starts)*s.Quota <= c.Size {
			require.GreaterOrEqual(t, n, min(s.Quota, len(met[s.Lane])))
		}
	}
	require.LessOrEqual(t, len(got.claimed), c.Size)
	require.Len(t, got.claimed, min(possible, c.Size), "what a lane does not use goes to the others")
}

// requireInTurn checks a claim of EventClaimFresh: from each lane the oldest, up to its quota, until the batch is full.
func requireInTurn(t *testing.T, c *claim, all []*Claimed, got traces) {
	t.Helper()
	met, took := walked(c, all, nil), walked(&claim{Claim: core.Claim{Starts: c.Starts}}, got.claimed, nil)
	left := c.Size
	for _, s := range c.Starts {
		n := min(s.Quota, len(met[s.Lane]), left)
		require.Equal(t, ids(met[s.Lane][:n]), ids(took[s.Lane]))
		left -= n
	}
	require.Empty(t, got.ends)
}

func ids(events []*Claimed) []uuid.UUID {
	ids := []uuid.UUID{}
	for _, e := range events {
		ids = append(ids, e.ID)
	}
	return ids
}

func claimed(t *testing.T, s *Store, pool *pgxpool.Pool, call func(*queries.Queries)) (r traces) {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	require.NoError(t, s.db.On(tx).SessionGuard(t.Context()))
	text, args := s.db.Record(call)
	rows, err := tx.Query(t.Context(), text, args...)
	require.NoError(t, err)
	var x roundTrip
	require.NoError(t, s.scanClaimed(rows, &x, time.Time{}))
	require.Empty(t, x.orphans)
	r.claimed, r.ends = append([]*Claimed{}, x.claimed...), x.found.Ends
	rows, err = tx.Query(t.Context(), `SELECT (to_jsonb(e) - '{locked_until,updated_at}'::text[])::text || (locked_until > now() + interval '50 min')::text ||
		(updated_at >= now())::text FROM testing.events AS e ORDER BY e.id`)
	require.NoError(t, err)
	r.table, err = pgx.CollectRows(rows, pgx.RowTo[*string])
	require.NoError(t, err)
	return r
}

// TestClaimStopsWhenItHasMetEnough: a claim of one event and one to reclaim meets sixteen in all. It tells where it has
// stopped in the lane where that was, also if it took nothing there, and that it has not come to those behind. The lane
// before, whose only event it took, has nothing more.
func TestClaimStopsWhenItHasMetEnough(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	s, err := NewStore(pool, StoreConfig{Namespace: "test"})
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `
		INSERT INTO testing.events (lane, namespace, topic, payload, status, attempts, max_attempts, next_attempt_at, locked_by, locked_until)
		SELECT lane, 'test', 'jobs', '{}', CASE WHEN lane = 8 THEN 'processing' ELSE 'pending' END, 1, 9, now() + (n - CASE lane WHEN 7 THEN 200 ELSE 100 END) * interval '1 s',
			CASE WHEN lane = 8 THEN gen_random_uuid() END, CASE WHEN lane = 8 THEN now() - interval '1 h' END
		FROM generate_series(0, 10) AS lane, generate_series(1, CASE lane WHEN 7 THEN 1 WHEN 8 THEN 3 ELSE 2 END) AS n`)
	require.NoError(t, err)
	c := &claim{Claim: core.Claim{Size: 1, Reclaims: 1}, lease: time.Hour}
	for lane := range int32(11) {
		c.Starts = append(c.Starts, core.Start{Lane: lane, Quota: 1, Piece: 100})
	}
	got := claimed(t, s, pool, func(q *queries.Queries) { _, _ = q.EventClaim(t.Context(), s.claimParams(c)) })
	require.Len(t, got.claimed, 1)
	var first core.Place
	var id pgtype.UUID
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT next_attempt_at, id FROM testing.events WHERE lane = 8 ORDER BY next_attempt_at").
		Scan(&first.Due, &id))
	first.ID = id.Bytes
	require.NotContains(t, got.ends, int32(7))
	require.Contains(t, got.ends, int32(8))
	require.Zero(t, first.Compare(got.ends[8]))
	for _, lane := range []int32{9, 10} {
		require.Contains(t, got.ends, lane)
		require.Zero(t, got.ends[lane].ID)
	}
}
