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

	var places []place
	rows, err := pool.Query(t.Context(), "SELECT next_attempt_at, id FROM testing.events")
	require.NoError(t, err)
	var p place
	var id pgtype.UUID
	_, err = pgx.ForEachRow(rows, []any{&p.due, &id}, func() error {
		places = append(places, place{p.due, id.Bytes})
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
		c := &claim{size: events, lease: time.Hour, maxAttempts: random.IntN(4)}
		if random.IntN(2) == 0 {
			c.topics = []string{"t1", "t2"}[:1+random.IntN(2)]
		}
		if random.IntN(3) == 0 {
			c.tenants = []uuid.UUID{uuid.MustParse("cfcd2084-95d5-65ef-66e7-dff9f98764da")} // md5('0')
		}
		lanes := 1 + random.IntN(3)
		for n := range lanes {
			c.starts = append(c.starts, start{lane: int16(n), quota: events, piece: 10 * events})
		}
		all := claimed(t, s, pool, func(q *queries.Queries) { _, _ = q.EventClaim(t.Context(), s.claimParams(c)) })
		for i := range c.starts {
			c.starts[i].piece = 0
		}
		got := claimed(t, s, pool, func(q *queries.Queries) { s.claimFrom(t.Context(), q, c) })
		require.Equal(t, all, got)
		taken += len(got.claimed)
		c.size = random.IntN(10) + 1
		for i := range c.starts {
			if random.IntN(2) == 0 {
				c.starts[i].after = places[random.IntN(len(places))]
			}
			c.starts[i].quota = random.IntN(c.size) + 1
		}
		got = claimed(t, s, pool, func(q *queries.Queries) { s.claimFrom(t.Context(), q, c) })
		requireInTurn(t, c, all.claimed, got)
		for i := range c.starts {
			c.starts[i].quota, c.starts[i].piece = max(c.size/lanes, 1), 1+random.IntN(2*c.size)
		}
		want := claimed(t, s, pool, func(q *queries.Queries) { _, _ = q.EventClaim(t.Context(), s.claimParams(c)) })
		requireShared(t, c, all.claimed, want)
		if lanes == 1 {
			c.starts[0].quota, c.starts[0].piece = c.size, 10*events
			want = claimed(t, s, pool, func(q *queries.Queries) { _, _ = q.EventClaim(t.Context(), s.claimParams(c)) })
			c.starts[0].piece = 0
			got = claimed(t, s, pool, func(q *queries.Queries) { s.claimFrom(t.Context(), q, c) })
			require.Equal(t, want.claimed, got.claimed)
			require.Equal(t, want.table, got.table)
		}
	}
	require.Greater(t, taken, 300)

	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	c := &claim{size: events, lease: time.Hour, starts: []start{{lane: 0, quota: events}, {lane: 1, quota: events}, {lane: 2, quota: events}}}
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
	ends    map[int16]place
	table   []*string
}

// walked returns which of all, the events that could be claimed, a claim of c meets in each lane.
func walked(c *claim, all []*Claimed, ends map[int16]place) map[int16][]*Claimed {
	m := make(map[int16][]*Claimed)
	for _, s := range c.starts {
		for _, e := range all {
			end, ended := ends[s.lane]
			if e.lane == s.lane && placeOf(e).compare(s.after) > 0 && (!ended || placeOf(e).compare(end) <= 0) {
				m[s.lane] = append(m[s.lane], e)
			}
		}
	}
	return m
}

// requireShared checks a claim of EventClaim: from each lane the oldest of its piece, as many as fit, and no lane less than
// its quota while another has more.
func requireShared(t *testing.T, c *claim, all []*Claimed, got traces) {
	t.Helper()
	met, took := walked(c, all, got.ends), walked(&claim{starts: c.starts}, got.claimed, nil)
	possible := 0
	for _, s := range c.starts {
		n := len(took[s.lane])
		require.Equal(t, ids(met[s.lane][:n]), ids(took[s.lane]), "the oldest of the lane")
		possible += len(met[s.lane])
		if len(c.starts)*s.quota <= c.size {
			require.GreaterOrEqual(t, n, min(s.quota, len(met[s.lane])))
		}
	}
	require.LessOrEqual(t, len(got.claimed), c.size)
	require.Len(t, got.claimed, min(possible, c.size), "what a lane does not use goes to the others")
}

// requireInTurn checks a claim of EventClaimFresh: from each lane the oldest, up to its quota, until the batch is full.
func requireInTurn(t *testing.T, c *claim, all []*Claimed, got traces) {
	t.Helper()
	met, took := walked(c, all, nil), walked(&claim{starts: c.starts}, got.claimed, nil)
	left := c.size
	for _, s := range c.starts {
		n := min(s.quota, len(met[s.lane]), left)
		require.Equal(t, ids(met[s.lane][:n]), ids(took[s.lane]))
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
	require.Empty(t, x.strays)
	r.claimed, r.ends = append([]*Claimed{}, x.claimed...), x.ends
	rows, err = tx.Query(t.Context(), `SELECT (to_jsonb(e) - '{locked_until,updated_at}'::text[])::text || (locked_until > now() + interval '50 min')::text ||
		(updated_at >= now())::text FROM testing.events AS e ORDER BY e.id`)
	require.NoError(t, err)
	r.table, err = pgx.CollectRows(rows, pgx.RowTo[*string])
	require.NoError(t, err)
	return r
}
