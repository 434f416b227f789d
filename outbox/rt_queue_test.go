package outbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
)

// eventState is the state of an event.
type eventState struct {
	Status      string
	Attempts    int
	MaxAttempts int
	ClaimNo     int64
	LastError   string
	Leased      bool // locked_until is set
	DueIn       time.Duration
}

func stateOf(t testing.TB, pool *pgxpool.Pool, id uuid.UUID) eventState {
	t.Helper()
	var r eventState
	require.NoError(t, pool.QueryRow(context.Background(), `
		SELECT status, attempts, max_attempts, claim_no, coalesce(last_error, ''), locked_until IS NOT NULL,
			next_attempt_at - updated_at
		FROM outbox.events WHERE id = $1`, id).
		Scan(&r.Status, &r.Attempts, &r.MaxAttempts, &r.ClaimNo, &r.LastError, &r.Leased, &r.DueIn))
	return r
}

const delivered = "SELECT count(*) FROM outbox.events WHERE status = 'delivered'"

var tenantA = uuid.MustParse("6f1f4b0e-3c8a-4a57-9d2e-0f6b7c8d9eab")

const space = "test" // the namespace of these tests

const longLease = time.Hour

// message returns a valid event; n makes its dedupe key.
func message(tenant uuid.UUID, n int) outbox.Message {
	return outbox.Message{
		Namespace: space, Topic: "ping", TenantID: outbox.Tenant(tenant),
		DedupeKey: fmt.Sprintf("%s/%d", tenant, n), Payload: []byte(`{"n": 1}`),
	}
}

// enqueueAll commits ms.
func enqueueAll(t testing.TB, pool *pgxpool.Pool, ms ...outbox.Message) []outbox.Receipt {
	t.Helper()
	var receipts []outbox.Receipt
	inTx(t, pool, func(tx pgx.Tx) {
		var err error
		receipts, err = outbox.EnqueueMany(t.Context(), tx, "", ms)
		require.NoError(t, err)
	})
	return receipts
}

// enqueueN commits n events of one tenant and topic.
func enqueueN(t testing.TB, pool *pgxpool.Pool, n int) []outbox.Receipt {
	t.Helper()
	tenant := uuid.New()
	ms := make([]outbox.Message, n)
	for i := range ms {
		ms[i] = message(tenant, i)
	}
	return enqueueAll(t, pool, ms...)
}

func newStore(t testing.TB, pool *pgxpool.Pool) *outbox.Store {
	t.Helper()
	return storeOf(t, pool, uuid.Nil)
}

func storeOf(t testing.TB, pool *pgxpool.Pool, worker uuid.UUID) *outbox.Store {
	t.Helper()
	s, err := outbox.NewStore(pool, outbox.StoreConfig{Namespace: space, WorkerID: worker})
	require.NoError(t, err)
	return s
}

// claimN claims with a long lease and demands n events.
func claimN(t testing.TB, s *outbox.Store, n int) []outbox.Claimed {
	t.Helper()
	claimed, err := s.Claim(t.Context(), outbox.ClaimConfig{BatchSize: max(n, 1), LeaseDuration: longLease})
	require.NoError(t, err)
	require.Len(t, claimed, n)
	return claimed
}

// expire ends the leases of ids, or of all events, without waiting for it.
func expire(t testing.TB, pool *pgxpool.Pool, ids ...uuid.UUID) {
	t.Helper()
	execute(t, pool, `UPDATE outbox.events SET locked_until = statement_timestamp() - interval '1 s'
		WHERE status = 'processing' AND (cardinality($1::uuid[]) = 0 OR id = ANY ($1::uuid[]))`, append([]uuid.UUID{}, ids...))
}

// makeDue ends every back-off.
func makeDue(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	execute(t, pool, `UPDATE outbox.events SET next_attempt_at = statement_timestamp() WHERE status = 'pending'`)
}

func countWhere(t testing.TB, pool *pgxpool.Pool, where string, args ...any) int {
	t.Helper()
	return value[int](t, pool, "SELECT count(*) FROM outbox.events WHERE "+where, args...)
}

// row is what the tests look at of an event.
type row struct {
	Status      string
	Attempts    int
	MaxAttempts int
	ClaimNo     int64
	LockedBy    uuid.NullUUID
	Locked      bool
	Final       bool
	LastError   *string
	DueIn       float64 // seconds
}

func rowOf(t testing.TB, pool *pgxpool.Pool, id uuid.UUID) row {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT status, attempts, max_attempts, claim_no, locked_by, locked_until IS NOT NULL AS locked,
		finalized_at IS NOT NULL AS final, last_error, extract(epoch FROM next_attempt_at - statement_timestamp())::float8 AS due_in
		FROM outbox.events WHERE id = $1`, id)
	require.NoError(t, err)
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[row])
	require.NoError(t, err)
	return r
}

// fingerprint hashes every column of every event: equal when nothing was changed.
func fingerprint(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return value[string](t, pool, `SELECT coalesce(md5(string_agg(e::text, E'\n' ORDER BY e.id)), '') FROM outbox.events AS e`)
}

func idsOf(claimed []outbox.Claimed) []uuid.UUID {
	ids := make([]uuid.UUID, len(claimed))
	for i, c := range claimed {
		ids[i] = c.ID
	}
	return ids
}

// all returns n times the same outcome.
func all(n int, o outbox.Outcome) []outbox.Outcome {
	outcomes := make([]outbox.Outcome, n)
	for i := range outcomes {
		outcomes[i] = o
	}
	return outcomes
}
