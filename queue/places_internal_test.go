package queue

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// queueDue makes n events of a topic due since a time, in the lane of the topic "own".
func queueDue(t *testing.T, pool *pgxpool.Pool, topic string, n int, since time.Duration) {
	t.Helper()
	pgtest.Execute(t, pool, `WITH e AS (INSERT INTO outbox.events (namespace, topic, payload) SELECT 'test', $3, '1' FROM generate_series(1, $1) RETURNING id)
		INSERT INTO outbox.queue (id, namespace, topic, lane, next_attempt_at) SELECT id, 'test', $3, $2, now() - $4::interval FROM e`,
		n, topiclane.Of("own"), topic, since)
}

// TestClaimsBeginAtTheirPlace: a claim that has passed more foreign events than a piece is followed by claims that begin
// behind them, until the time of the head has come, or the store itself has put something back.
func TestClaimsBeginAtTheirPlace(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.URL(t, pgtest.Database(t)))
	s, err := NewStore(pool, StoreConfig{Namespace: "test"})
	require.NoError(t, err)
	own := ClaimConfig{Topics: []string{"own"}, LeaseDuration: time.Hour}
	claim := func(cfg ClaimConfig) []Claimed {
		t.Helper()
		claimed, err := s.Claim(t.Context(), cfg)
		require.NoError(t, err)
		return claimed
	}
	// later keeps the claims away from the head, however slow the machine is.
	later := func() {
		for key, at := range s.places.of {
			at.head = time.Now().Add(time.Hour)
			s.places.of[key] = at
		}
	}
	queueDue(t, pool, "own", 1, 2*time.Hour)
	require.Len(t, claim(own), 1)
	require.Empty(t, s.places.of, "the head costs nothing")

	queueDue(t, pool, "foreign", 2500, time.Hour)
	require.Empty(t, claim(own))
	require.Len(t, s.places.of, 1)
	require.Less(t, time.Now(), s.places.of[selection(&own)].head)
	later()
	queueDue(t, pool, "own", 2, 0)
	behind := claim(own)
	require.Len(t, behind, 2)
	queueDue(t, pool, "own", 1, 2*time.Hour)
	require.Empty(t, claim(own), "it is before the place")
	require.Len(t, claim(ClaimConfig{Topics: []string{"own"}, Versions: map[string]int{"own": 1}}), 1, "another selection")

	queueDue(t, pool, "own", 1, 2*time.Hour)
	at := s.places.of[selection(&own)]
	at.head = time.Now()
	s.places.of[selection(&own)] = at
	first := claim(own)
	require.Len(t, first, 1, "from the head")
	later()
	_, err = s.Release(t.Context(), first...)
	require.NoError(t, err)
	again := claim(own)
	require.Len(t, again, 1, "what the store has released")
	later()
	_, err = s.Nack(t.Context(), Failure{Claimed: again[0], Err: errors.New("away"), RetryAt: time.Now().Add(-3 * time.Hour)})
	require.NoError(t, err)
	require.Len(t, claim(own), 1, "what is due before the place again")
}

// TestPlacesAreBounded: a store does not remember any number of selections.
func TestPlacesAreBounded(t *testing.T) {
	t.Parallel()
	var p places
	for range 3 * mostPlaces {
		c, v := p.take(&ClaimConfig{TenantIDs: []uuid.UUID{uuid.New()}})
		v.passes = true
		p.leave(v, c)
	}
	require.LessOrEqual(t, len(p.of), mostPlaces)
}

// TestPlaceOfAnOlderClaim: what was under way when the places were given up does not set one.
func TestPlaceOfAnOlderClaim(t *testing.T) {
	t.Parallel()
	var p places
	c, v := p.take(&ClaimConfig{})
	v.passes = true
	p.reset()
	p.leave(v, c)
	require.Empty(t, p.of)
}
