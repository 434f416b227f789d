package queue

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestClaimLeavesWhatFailedMeanwhile: a claim has met an event, and before it locks it another worker claims it and fails. The
// event is due later now, so the claim leaves it.
func TestClaimLeavesWhatFailedMeanwhile(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	put(t, pool, "ping", 1)
	slow, other := storeWith(t, pool, nil), storeWith(t, pool, nil)
	const met, waits = "FROM share AS h\n    JOIN", "FROM share AS h\n    CROSS JOIN (SELECT pg_advisory_xact_lock_shared(7)) AS w\n    JOIN"
	require.Contains(t, queries.EventClaim, met)
	slow.db = slow.db.Instead(queries.EventClaim, strings.Replace(queries.EventClaim, met, waits, 1))
	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock(7)")
	require.NoError(t, err)
	claimed := make(chan []Claimed, 1)
	go func() {
		found, err := slow.Claim(t.Context(), ClaimConfig{})
		pgtest.Check(t, err)
		claimed <- found
	}()
	pgtest.AwaitBlocked(t, pool, 1)
	found, err := other.Claim(t.Context(), ClaimConfig{})
	require.NoError(t, err)
	require.Len(t, found, 1)
	_, err = other.Nack(t.Context(), Failure{Claimed: found[0], Err: errors.New("x"), RetryAt: time.Now().Add(time.Hour)})
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	require.Empty(t, pgtest.Receive(t, claimed, "the slow claim"))
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue WHERE claim_no = 1 AND attempts = 1 AND locked_until IS NULL"))
}
