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

// waitsBeforeLocks makes a statement of s wait for the advisory lock 7 after it has met its rows, and before it locks them.
func waitsBeforeLocks(t *testing.T, s *Store, query, met string) {
	t.Helper()
	text, join := s.db.Text(query), met+"    JOIN"
	require.Equal(t, 1, strings.Count(text, join), "statement does not have exactly once: %s", join)
	const waits = "    CROSS JOIN (SELECT pg_advisory_xact_lock_shared(7)) AS w\n    JOIN"
	s.db = s.db.Instead(query, strings.Replace(text, join, met+waits, 1))
}

// TestClaimLeavesWhatFailedMeanwhile: a claim has met an event, and before it locks it another worker claims it and fails. The
// event is due later now, so the claim leaves it.
func TestClaimLeavesWhatFailedMeanwhile(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	put(t, pool, "ping", 1)
	slow, other := storeWith(t, pool, nil), storeWith(t, pool, nil)
	waitsBeforeLocks(t, slow, queries.EventClaim, "FROM share AS h\n")
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

// TestSweepLeavesWhatChangedMeanwhile: a sweep has met an event whose lease ran out on its last attempt, and before it locks the
// event another sweep notes it, or its holder renews the lease. The grace has just begun, or is not needed, so the event lives.
func TestSweepLeavesWhatChangedMeanwhile(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(t *testing.T, other *Store, held Claimed){
		"noted": func(t *testing.T, other *Store, _ Claimed) {
			died, noted, err := other.sweep(t.Context(), &claim{}, time.Hour, nil)
			require.NoError(t, err)
			require.Equal(t, []int{0, 1}, []int{died, noted})
		},
		"renewed": func(t *testing.T, other *Store, held Claimed) {
			outcomes, err := other.Extend(t.Context(), time.Hour, held)
			require.NoError(t, err)
			require.Equal(t, []Outcome{Applied}, outcomes)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			put(t, pool, "ping", 1)
			slow, other := storeWith(t, pool, nil), storeWith(t, pool, nil)
			held, err := other.Claim(t.Context(), ClaimConfig{})
			require.NoError(t, err)
			require.Len(t, held, 1)
			pgtest.Execute(t, pool, `UPDATE outbox.queue SET max_attempts = attempts, locked_until = now() - interval '2 h',
				updated_at = now() - interval '3 h'`)
			waitsBeforeLocks(t, slow, queries.EventSweepDead, "FROM met AS m\n")
			tx := pgtest.Begin(t, pool, pgx.TxOptions{})
			_, err = tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock(7)")
			require.NoError(t, err)
			type result struct{ died, noted int }
			swept := make(chan result, 1)
			go func() {
				died, noted, err := slow.sweep(t.Context(), &claim{}, time.Hour, nil)
				pgtest.Check(t, err)
				swept <- result{died, noted}
			}()
			pgtest.AwaitBlocked(t, pool, 1)
			meanwhile(t, other, held[0])
			require.NoError(t, tx.Commit(t.Context()))
			require.Equal(t, result{}, pgtest.Receive(t, swept, "the slow sweep"))
			require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue WHERE claim_no = 1"))
		})
	}
}
