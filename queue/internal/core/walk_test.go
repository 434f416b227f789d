package core

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/tenantlane"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestTrail: it is a second, and shorter when a second has many events.
func TestTrail(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var w Walk
	w.count(0, now)
	require.Equal(t, longestTrail, w.trail)
	step := func(n int) time.Duration {
		now = now.Add(longestTrail/4 + 1)
		w.count(n, now)
		return w.trail
	}
	require.Equal(t, longestTrail, step(0))
	require.Equal(t, longestTrail, step(100))
	require.InDelta(t, 100*time.Millisecond, step(2500), float64(time.Millisecond))
	require.Equal(t, shortestTrail, step(1_000_000))
	require.Equal(t, longestTrail, step(1))
}

// TestPiecesAreAsLongAsClaimsAreFast: they grow while claims that walk a whole piece are fast, and shrink when one is
// slow or fails, within bounds.
func TestPiecesAreAsLongAsClaimsAreFast(t *testing.T) {
	t.Parallel()
	var w Walk
	step := func(took time.Duration) int {
		q := &Claim{Size: 10, Starts: w.Pieces(10, false)}
		w.Advance(time.Now(), q, &Found{Took: took, At: time.Now(), Ends: map[int16]Place{5: {time.Now(), uuid.New()}}})
		return w.piece
	}
	require.Equal(t, 4*FirstPiece, step(fastClaim/2))
	require.Equal(t, 16*FirstPiece, step(fastClaim/2))
	require.Equal(t, 16*FirstPiece, step((fastClaim+slowClaim)/2))
	require.Equal(t, largestPiece, step(fastClaim/2))
	require.Equal(t, largestPiece, step(fastClaim/2))
	require.Equal(t, largestPiece/2, step(2*slowClaim))
	for range 20 {
		step(2 * slowClaim)
	}
	require.Equal(t, smallestPiece, w.piece)
	step(fastClaim / 2)
	w.Failed()
	require.Equal(t, smallestPiece, w.piece)
}

// TestOnwardSharesTheBatch: lanes that are known to have more share the batch and come last, each of the others may
// fill it, and they are left out for a moment at most.
func TestOnwardSharesTheBatch(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var w Walk
	for i := range w.lanes {
		w.lanes[i].seen = true
	}
	all := w.onward(100, now)
	require.Len(t, all, tenantlane.Count)
	for _, s := range all {
		require.Equal(t, 100, s.Quota)
		require.Zero(t, s.Piece)
	}
	w.lanes[3], w.lanes[7], w.lanes[9] = stage{dense: true}, stage{dense: true}, stage{dense: true}
	few := w.onward(100, now)
	require.Len(t, few, 3)
	for _, s := range few {
		require.Contains(t, []int16{3, 7, 9}, s.Lane)
		require.Equal(t, 34, s.Quota)
	}
	first := few[0].Lane
	require.NotEqual(t, first, func() int16 {
		for range tenantlane.Count {
			if s := w.onward(100, now); s[0].Lane != first {
				return s[0].Lane
			}
		}
		return first
	}(), "they take turns in being the first")
	all = w.onward(100, now.Add(othersEvery))
	require.Len(t, all, tenantlane.Count)
	for i, s := range all {
		require.Equal(t, i >= tenantlane.Count-3, w.lanes[s.Lane].dense)
	}
	w.Failed()
	for _, s := range w.onward(100, now) {
		require.Equal(t, max(smallestPiece, 200), s.Piece, "after a failure it walks in short pieces")
	}
}

// TestLanesOfATenant: a claim of tenants of topics walks their lanes, whether the topics are fair by tenant or not.
func TestLanesOfATenant(t *testing.T) {
	t.Parallel()
	tenant := uuid.New()
	l := LanesOf([]string{"a", "b"}, []uuid.UUID{tenant})
	n := 0
	for i := range int16(tenantlane.Count) {
		if l.Has(i) {
			n++
		}
	}
	require.LessOrEqual(t, n, 5)
	for _, topic := range []string{"a", "b"} {
		require.True(t, l.Has(tenantlane.Of(topic, uuid.NullUUID{})))
		require.True(t, l.Has(tenantlane.Of(topic, outbox.Tenant(tenant))))
	}
	require.True(t, l.Has(0), "rows without a lane")
	for _, all := range []Lanes{LanesOf(nil, []uuid.UUID{tenant}), LanesOf([]string{"a"}, nil)} {
		for i := range int16(tenantlane.Count) {
			require.True(t, all.Has(i))
		}
	}
}
