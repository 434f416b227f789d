package runtimetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// EventState is the state of an event.
type EventState struct {
	Status      string
	Attempts    int
	MaxAttempts int // 0 of a delivered event
	ClaimNo     int64
	LastError   string
	Leased      bool          // locked_until is set
	DueIn       time.Duration // 0 of an event that is final
}

func StateOf(t testing.TB, pool *pgxpool.Pool, id uuid.UUID) EventState {
	t.Helper()
	var r EventState
	require.NoError(t, pool.QueryRow(context.Background(), `
		SELECT s.status, s.attempts, coalesce(s.max_attempts, 0), s.claim_no, coalesce(s.last_error, ''), s.locked_until IS NOT NULL,
			coalesce(s.next_attempt_at - q.updated_at, '0')
		FROM outbox.event_status AS s LEFT JOIN outbox.queue AS q ON q.id = s.id WHERE s.id = $1`, id).
		Scan(&r.Status, &r.Attempts, &r.MaxAttempts, &r.ClaimNo, &r.LastError, &r.Leased, &r.DueIn))
	return r
}

const DeliveredSQL = "SELECT count(*) FROM outbox.event_status WHERE status = 'delivered'"

var TenantA = uuid.MustParse("6f1f4b0e-3c8a-4a57-9d2e-0f6b7c8d9eab")

const Namespace = "test" // the namespace of these tests

const LongLease = time.Hour

// Message returns a valid event; n makes its dedupe key.
func Message(tenant uuid.UUID, n int) outbox.Message {
	return outbox.Message{
		Namespace: Namespace, Topic: "ping", TenantID: outbox.Tenant(tenant),
		DedupeKey: fmt.Sprintf("%s/%d", tenant, n), Payload: []byte(`{"n": 1}`),
	}
}

// EnqueueAll commits ms.
func EnqueueAll(t testing.TB, pool *pgxpool.Pool, ms ...outbox.Message) []outbox.Receipt {
	t.Helper()
	var receipts []outbox.Receipt
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		var err error
		receipts, err = outbox.EnqueueMany(t.Context(), tx, "", ms)
		require.NoError(t, err)
	})
	return receipts
}

// EnqueueN commits n events of one tenant and topic.
func EnqueueN(t testing.TB, pool *pgxpool.Pool, n int) []outbox.Receipt {
	t.Helper()
	tenant := uuid.New()
	ms := make([]outbox.Message, n)
	for i := range ms {
		ms[i] = Message(tenant, i)
	}
	return EnqueueAll(t, pool, ms...)
}

func NewStore(t testing.TB, pool *pgxpool.Pool) *queue.Store {
	t.Helper()
	return StoreOf(t, pool, uuid.Nil)
}

func StoreOf(t testing.TB, pool *pgxpool.Pool, worker uuid.UUID) *queue.Store {
	t.Helper()
	s, err := queue.NewStore(pool, queue.StoreConfig{Namespace: Namespace, WorkerID: worker})
	require.NoError(t, err)
	return s
}

// ClaimN claims with a long lease and requires n events. That takes several claims if the lanes have different numbers
// of events. After n events it claims no more.
func ClaimN(t testing.TB, s *queue.Store, n int) []queue.Claimed {
	t.Helper()
	claimed, err := s.Claim(t.Context(), queue.ClaimConfig{BatchSize: max(n, 1), LeaseDuration: LongLease})
	require.NoError(t, err)
	require.Len(t, claimed, n)
	return claimed
}

// ExpireLeases ends the leases of ids, or of all events, immediately.
func ExpireLeases(t testing.TB, pool *pgxpool.Pool, ids ...uuid.UUID) {
	t.Helper()
	pgtest.Execute(t, pool, `UPDATE testing.events SET locked_until = statement_timestamp() - interval '1 s'
		WHERE status = 'processing' AND (cardinality($1::uuid[]) = 0 OR id = ANY ($1::uuid[]))`,
		append([]uuid.UUID{}, ids...))
}

// MakeDue makes all events due.
func MakeDue(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Execute(t, pool, `UPDATE testing.events SET next_attempt_at = statement_timestamp() WHERE status = 'pending'`)
}

func CountWhere(t testing.TB, pool *pgxpool.Pool, where string, args ...any) int {
	t.Helper()
	return pgtest.Value[int](t, pool, "SELECT count(*) FROM testing.events WHERE "+where, args...)
}

// Row has the columns of an event that the tests compare.
type Row struct {
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

func RowOf(t testing.TB, pool *pgxpool.Pool, id uuid.UUID) Row {
	t.Helper()
	rows, err := pool.Query(t.Context(),
		`SELECT status, attempts, max_attempts, claim_no, locked_by, locked_until IS NOT NULL AS locked,
		finalized_at IS NOT NULL AS final, last_error, extract(epoch FROM next_attempt_at - statement_timestamp())::float8 AS due_in
		FROM testing.events WHERE id = $1`, id)
	require.NoError(t, err)
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Row])
	require.NoError(t, err)
	return r
}

// Fingerprint hashes every column of every event. The hash is equal if nothing was changed.
func Fingerprint(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return pgtest.Value[string](t, pool,
		`SELECT coalesce(md5(string_agg(e::text, E'\n' ORDER BY e.id)), '') FROM testing.events AS e`)
}

func IDsOf(claimed []queue.Claimed) []uuid.UUID {
	ids := make([]uuid.UUID, len(claimed))
	for i, c := range claimed {
		ids[i] = c.ID
	}
	return ids
}

// Repeat returns n times the same outcome.
func Repeat(n int, o queue.Outcome) []queue.Outcome {
	outcomes := make([]queue.Outcome, n)
	for i := range outcomes {
		outcomes[i] = o
	}
	return outcomes
}
