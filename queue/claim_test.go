package queue_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

func TestNewStoreAndClaimRefuseBadConfigs(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	_, err := queue.NewStore(nil, queue.StoreConfig{Namespace: runtimetest.Namespace})
	require.ErrorContains(t, err, "no pool")
	for _, cfg := range []queue.StoreConfig{{}, {Namespace: "Mini"}, {Namespace: runtimetest.Namespace, Schema: "a b"}, {Namespace: runtimetest.Namespace, Schema: "table"}} {
		_, err := queue.NewStore(pool, cfg)
		require.Error(t, err)
	}
	s := runtimetest.NewStore(t, pool)
	for _, cfg := range []queue.ClaimConfig{
		{BatchSize: -1}, {BatchSize: 10_001}, {LeaseDuration: -1}, {LeaseDuration: time.Millisecond}, {MaxAttempts: -1}, {MaxAttempts: 1 << 31},
	} {
		_, err := s.Claim(t.Context(), cfg)
		require.Error(t, err)
	}
}

func TestClaimSetsTheLease(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	worker := uuid.New()
	s := runtimetest.StoreOf(t, pool, worker)
	runtimetest.EnqueueN(t, pool, 1)
	claimed, err := s.Claim(t.Context(), queue.ClaimConfig{LeaseDuration: time.Minute})
	require.NoError(t, err)
	require.Len(t, claimed, 1)
	c := claimed[0]
	require.Equal(t, "test/ping", c.Namespace+"/"+c.Topic)
	require.Equal(t, []int{1, 25, 1}, []int{c.Attempt, c.MaxAttempts, c.Version})
	require.EqualValues(t, 1, c.ClaimNo)
	require.False(t, c.Reclaimed)
	require.Equal(t, runtimetest.Row{
		Status: "processing", Attempts: 1, MaxAttempts: 25, ClaimNo: 1, LockedBy: uuid.NullUUID{UUID: worker, Valid: true}, Locked: true,
	}, timeless(runtimetest.RowOf(t, pool, c.ID)))
	require.Equal(t, 1, runtimetest.CountWhere(t, pool, `locked_until BETWEEN statement_timestamp() + interval '50 s' AND statement_timestamp() + interval '60 s'
		AND updated_at >= created_at`))
	claimed, err = s.Claim(t.Context(), queue.ClaimConfig{})
	require.NoError(t, err)
	require.NotNil(t, claimed)
	require.Empty(t, claimed, "leased events are not claimed again")
}

func timeless(r runtimetest.Row) runtimetest.Row {
	r.DueIn = 0
	return r
}

func TestClaimOldestDueFirstThenByID(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	withAndWithoutIndex(t, testClaimOrder)
}

// withAndWithoutIndex runs test twice: with the index of due events, whose order a scan and a nested loop keep anyway,
// and without index and nested loop, where only the statement itself determines the order.
func withAndWithoutIndex(t *testing.T, test func(*testing.T, *pgxpool.Pool)) {
	t.Run("index", func(t *testing.T) {
		t.Parallel()
		test(t, pgtest.Database(t))
	})
	t.Run("no index", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Database(t)
		pgtest.Execute(t, pool, "DROP INDEX outbox.queue_due")
		pgtest.Execute(t, pool, "ALTER DATABASE "+pool.Config().ConnConfig.Database+" SET enable_nestloop = off")
		test(t, pgtest.Pool(t, pgtest.URL(t, pool)))
	})
}

func testClaimOrder(t *testing.T, pool *pgxpool.Pool) {
	const n = 200
	s := runtimetest.NewStore(t, pool)
	runtimetest.EnqueueN(t, pool, n)
	// There are few distinct times, the ids do not follow them, and the rows are in no order on disk.
	pgtest.Execute(t, pool, `UPDATE testing.events SET id = gen_random_uuid(), next_attempt_at = statement_timestamp() - (random() * 20)::int * interval '1 min'`)
	due := map[uuid.UUID]time.Time{}
	rows, err := pool.Query(t.Context(), "SELECT id, next_attempt_at FROM testing.events")
	require.NoError(t, err)
	var id uuid.UUID
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &at}, func() error {
		due[id] = at
		return nil
	})
	require.NoError(t, err)
	want := make([]uuid.UUID, 0, n)
	for id := range due {
		want = append(want, id)
	}
	slices.SortFunc(want, func(a, b uuid.UUID) int {
		return cmp.Or(due[a].Compare(due[b]), slices.Compare(a[:], b[:]))
	})
	var got []uuid.UUID
	for len(got) < n {
		claimed, err := s.Claim(t.Context(), queue.ClaimConfig{BatchSize: 1 + rand.IntN(60)})
		require.NoError(t, err)
		require.NotEmpty(t, claimed)
		got = append(got, runtimetest.IDsOf(claimed)...)
	}
	require.Equal(t, want, got, "within a claim and from claim to claim")
}

func TestClaimLeavesWhatIsNotDue(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	later := runtimetest.Message(runtimetest.TenantA, 1)
	later.NotBefore = time.Now().Add(runtimetest.LongLease)
	runtimetest.EnqueueAll(t, pool, later)
	other := runtimetest.Message(runtimetest.TenantA, 1)
	other.Namespace = "elsewhere"
	runtimetest.EnqueueAll(t, pool, other)
	s := runtimetest.NewStore(t, pool)
	runtimetest.ClaimN(t, s, 0)
	runtimetest.MakeDue(t, pool)
	runtimetest.ClaimN(t, s, 1)
}

func TestClaimIsExactlyTheBatchForEverySize(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const n = 1200
	pool := pgtest.Database(t)
	s := runtimetest.NewStore(t, pool)
	runtimetest.EnqueueN(t, pool, n)
	for _, size := range []int{1, 2, 3, 5, 10, 50, 99, 100, 101, 250, 499, 500} {
		claimed, err := s.Claim(t.Context(), queue.ClaimConfig{BatchSize: size})
		require.NoError(t, err)
		require.Len(t, claimed, size)
		require.Equal(t, size, runtimetest.CountWhere(t, pool, "status = 'processing'"), "nothing is leased but not returned")
		outcomes, err := s.Release(t.Context(), claimed...)
		require.NoError(t, err)
		require.Equal(t, runtimetest.Repeat(size, queue.Applied), outcomes)
	}
	require.Equal(t, n, runtimetest.CountWhere(t, pool, "status = 'pending' AND attempts = 0"))
	_, err := s.Claim(t.Context(), queue.ClaimConfig{BatchSize: n + 1})
	require.NoError(t, err)
	require.Equal(t, n, runtimetest.CountWhere(t, pool, "status = 'processing'"))
}

func TestClaimFilters(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	tenants := []uuid.UUID{uuid.New(), uuid.New()}
	topics := []string{"ping", "pong", "pang"}
	var ms []outbox.Message
	for i, topic := range topics {
		for j, tenant := range tenants {
			m := runtimetest.Message(tenant, 10*i+j)
			m.Topic = topic
			pgtest.InTx(t, pool, func(tx pgx.Tx) {
				_, err := outbox.Enqueue(t.Context(), tx, "", m)
				require.NoError(t, err)
			})
			ms = append(ms, m)
		}
	}
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := outbox.Enqueue(t.Context(), tx, "", outbox.Message{Namespace: runtimetest.Namespace, Topic: "ping", Payload: []byte("0")})
		require.NoError(t, err)
	})
	s := runtimetest.NewStore(t, pool)
	for _, c := range []struct {
		topics  []string
		tenants []uuid.UUID
		want    int
	}{
		{nil, nil, len(ms) + 1},
		{[]string{"ping"}, nil, 3},
		{[]string{"ping", "pang"}, nil, 5},
		{[]string{"nosuch"}, nil, 0},
		{nil, []uuid.UUID{tenants[0]}, 3},
		{[]string{"pong"}, []uuid.UUID{tenants[1]}, 1},
		{nil, []uuid.UUID{uuid.New()}, 0},
		{nil, []uuid.UUID{uuid.Nil}, 0},
	} {
		for _, state := range []string{"fresh", "reclaimed"} {
			cfg := queue.ClaimConfig{Topics: c.topics, TenantIDs: c.tenants, BatchSize: 100, LeaseDuration: runtimetest.LongLease}
			claimed, err := s.Claim(t.Context(), cfg)
			require.NoError(t, err)
			if state == "fresh" {
				require.Len(t, claimed, c.want, "%v", c)
			} else {
				require.Len(t, claimed, min(c.want, 5), "%v: reclaimed events come few at a time", c)
			}
			for _, got := range claimed {
				require.True(t, len(c.topics) == 0 || slices.Contains(c.topics, got.Topic))
				require.True(t, c.tenants == nil || slices.Contains(c.tenants, got.TenantID.UUID))
			}
			if state == "fresh" { // the second time all events are reclaimed
				pgtest.Execute(t, pool, `UPDATE testing.events SET status = 'processing', attempts = 1, claim_no = claim_no + 1, locked_by = gen_random_uuid(),
					locked_until = statement_timestamp() - interval '1 s'`)
			} else {
				pgtest.Execute(t, pool, `UPDATE testing.events SET status = 'pending', attempts = 0, locked_until = NULL`)
			}
		}
	}
}

func TestClaimMaxAttemptsOverridesAndIsRecorded(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	s := runtimetest.NewStore(t, pool)
	id := runtimetest.EnqueueN(t, pool, 1)[0].ID
	claim := func(limit, want int) []queue.Claimed {
		t.Helper()
		runtimetest.MakeDue(t, pool)
		claimed, err := s.Claim(t.Context(), queue.ClaimConfig{MaxAttempts: limit})
		require.NoError(t, err)
		require.Len(t, claimed, want)
		return claimed
	}
	nack := func(claimed []queue.Claimed) {
		t.Helper()
		outcomes, err := s.Nack(t.Context(), queue.Failure{Claimed: claimed[0], Err: fmt.Errorf("x")})
		require.NoError(t, err)
		require.Equal(t, runtimetest.Repeat(1, queue.Applied), outcomes)
	}
	claimed := claim(9, 1)
	require.Equal(t, 9, claimed[0].MaxAttempts)
	require.Equal(t, 9, runtimetest.RowOf(t, pool, id).MaxAttempts)
	nack(claimed)
	claim(1, 0) // it has been tried once already
	require.Equal(t, 9, runtimetest.RowOf(t, pool, id).MaxAttempts)
	nack(claim(3, 1))
	claimed = claim(3, 1)
	nack(claimed)
	require.Equal(t, "dead", runtimetest.RowOf(t, pool, id).Status, "the limit that was recorded decides")
	claim(9, 0)
}

func TestConcurrentClaimsNeverOverlap(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const workers, n = 16, 2000
	pool := pgtest.Database(t)
	runtimetest.EnqueueN(t, pool, n)
	var mu sync.Mutex
	seen := map[uuid.UUID]int{}
	var wg sync.WaitGroup
	for range workers {
		s := runtimetest.NewStore(t, pool)
		wg.Go(func() {
			for {
				claimed, err := s.Claim(t.Context(), queue.ClaimConfig{BatchSize: 1 + rand.IntN(40), LeaseDuration: runtimetest.LongLease})
				if !pgtest.Check(t, err) {
					return
				}
				mu.Lock()
				for _, c := range claimed {
					seen[c.ID]++
				}
				done := len(seen) == n
				mu.Unlock()
				if done || len(claimed) == 0 && runtimetest.CountWhere(t, pool, "status = 'pending'") == 0 {
					return
				}
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, n)
	require.Equal(t, n, runtimetest.CountWhere(t, pool, "attempts = 1 AND claim_no = 1"))
	for id, times := range seen {
		require.Equal(t, 1, times, id)
	}
}

// A claim does not wait for locked rows, and takes the ones after them.
func TestClaimSkipsLockedRows(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	receipts := runtimetest.EnqueueN(t, pool, 20)
	s := runtimetest.NewStore(t, pool)
	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := tx.Exec(t.Context(), "SELECT FROM outbox.queue WHERE id = $1 FOR UPDATE", receipts[0].ID)
	require.NoError(t, err)
	claimed := runtimetest.ClaimN(t, s, 19)
	require.NotContains(t, runtimetest.IDsOf(claimed), receipts[0].ID)
	runtimetest.ExpireLeases(t, pool)
	_, err = tx.Exec(t.Context(), "SELECT FROM outbox.queue FOR UPDATE")
	require.NoError(t, err)
	runtimetest.ClaimN(t, s, 0) // reclaimed events too
	n, err := s.SweepDead(t.Context())
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, tx.Commit(t.Context()))
	runtimetest.ClaimN(t, s, 6) // one fresh, five reclaimed events
}

func TestExpiredLeasesAreReclaimedFewAtATime(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	s := runtimetest.NewStore(t, pool)
	runtimetest.EnqueueN(t, pool, 12)
	old := runtimetest.ClaimN(t, s, 12)
	runtimetest.ExpireLeases(t, pool)
	runtimetest.EnqueueN(t, pool, 3)
	claimed, err := s.Claim(t.Context(), queue.ClaimConfig{BatchSize: 100, LeaseDuration: runtimetest.LongLease})
	require.NoError(t, err)
	require.Len(t, claimed, 5+3)
	for i, c := range claimed {
		require.Equal(t, i < 5, c.Reclaimed, "the reclaimed events are the oldest")
		if i < 5 {
			require.Equal(t, old[i].ID, c.ID)
			require.EqualValues(t, 2, c.ClaimNo)
			require.Equal(t, 2, c.Attempt)
		}
	}
	require.Len(t, runtimetest.ClaimN(t, s, 5), 5)
	require.Len(t, runtimetest.ClaimN(t, s, 2), 2)
	runtimetest.ClaimN(t, s, 0)
}

// A batch that young events fill does not starve reclaimed events of the same age, and does not take younger ones
// first.
func TestReclaimedEventsAreOrderedByAge(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	withAndWithoutIndex(t, testReclaimOrder)
}

func testReclaimOrder(t *testing.T, pool *pgxpool.Pool) {
	s := runtimetest.NewStore(t, pool)
	old := runtimetest.EnqueueN(t, pool, 2)
	runtimetest.ClaimN(t, s, 2)
	young := runtimetest.EnqueueN(t, pool, 10)
	pgtest.Execute(t, pool, `UPDATE testing.events SET next_attempt_at = statement_timestamp() - interval '1 min'`) // one due time for all, so that ids decide the order
	runtimetest.ExpireLeases(t, pool)
	claimed, err := s.Claim(t.Context(), queue.ClaimConfig{BatchSize: 3})
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{old[0].ID, old[1].ID, young[0].ID}, runtimetest.IDsOf(claimed))
	require.Equal(t, 9, runtimetest.CountWhere(t, pool, "status = 'pending'"), "what gave way to a reclaimed event stays as it was")
	// An event behind a full batch waits until its lease has run out.
	pgtest.Execute(t, pool, `UPDATE testing.events SET locked_until = statement_timestamp() - interval '1 s', next_attempt_at = statement_timestamp() WHERE status = 'processing'`)
	claimed, err = s.Claim(t.Context(), queue.ClaimConfig{BatchSize: 3})
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{young[1].ID, young[2].ID, young[3].ID}, runtimetest.IDsOf(claimed))
	// The oldest of many reclaimed events come first, whatever their order on disk.
	pgtest.Execute(t, pool, `UPDATE testing.events SET status = 'processing', attempts = 1, locked_by = gen_random_uuid(),
		locked_until = statement_timestamp() - interval '1 s', next_attempt_at = statement_timestamp() - interval '1 h'`)
	for i := len(young) - 1; i >= 0; i-- {
		pgtest.Execute(t, pool, "UPDATE testing.events SET next_attempt_at = next_attempt_at - $2 * interval '1 min' WHERE id = $1", young[i].ID, 100-i)
	}
	claimed, err = s.Claim(t.Context(), queue.ClaimConfig{BatchSize: 3})
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{young[0].ID, young[1].ID, young[2].ID}, runtimetest.IDsOf(claimed))
}

// Reclaimed events are claimed if they are among the oldest due, and in the order of age with the others.
func TestReclaimedEventsMixWithTheOthersByAge(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	withAndWithoutIndex(t, testReclaimMix)
}

func testReclaimMix(t *testing.T, pool *pgxpool.Pool) {
	s := runtimetest.NewStore(t, pool)
	receipts := runtimetest.EnqueueN(t, pool, 8)
	age := func(reclaimed ...int) {
		for i, r := range receipts {
			pgtest.Execute(t, pool, `UPDATE testing.events SET next_attempt_at = statement_timestamp() - $2 * interval '1 min', attempts = 1,
				status = CASE WHEN $3 THEN 'processing' ELSE 'pending' END,
				locked_until = CASE WHEN $3 THEN statement_timestamp() - interval '1 s' END WHERE id = $1`, r.ID, 100-i, slices.Contains(reclaimed, i))
		}
	}
	want := func(indexes ...int) []uuid.UUID {
		ids := make([]uuid.UUID, len(indexes))
		for i, n := range indexes {
			ids[i] = receipts[n].ID
		}
		return ids
	}
	for _, c := range []struct {
		reclaimed []int
		size      int
		want      []int
	}{
		{[]int{1}, 2, []int{0, 1}},
		{[]int{1, 2, 3}, 3, []int{0, 1, 2}},
		{[]int{0, 2, 4}, 4, []int{0, 1, 2, 3}},
		{[]int{3, 4, 5}, 2, []int{0, 1}},
		{[]int{6, 7}, 8, []int{0, 1, 2, 3, 4, 5, 6, 7}},
	} {
		age(c.reclaimed...)
		claimed, err := s.Claim(t.Context(), queue.ClaimConfig{BatchSize: c.size})
		require.NoError(t, err)
		require.Equal(t, want(c.want...), runtimetest.IDsOf(claimed), "%v", c)
		for i, got := range claimed {
			require.Equal(t, slices.Contains(c.reclaimed, c.want[i]), got.Reclaimed)
		}
	}
}

func TestReclaimLeavesEventsOfOthersAndSpentOnes(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	other := runtimetest.Message(runtimetest.TenantA, 1)
	other.Namespace = "elsewhere"
	runtimetest.EnqueueAll(t, pool, other)
	spent := runtimetest.EnqueueN(t, pool, 1)[0].ID
	pgtest.Execute(t, pool, `UPDATE testing.events SET status = 'processing', attempts = CASE WHEN id = $1 THEN max_attempts ELSE 1 END,
		locked_until = statement_timestamp() - interval '1 s'`, spent)
	before := runtimetest.Fingerprint(t, pool)
	runtimetest.ClaimN(t, runtimetest.NewStore(t, pool), 0)
	require.Equal(t, before, runtimetest.Fingerprint(t, pool))
}

// An event whose handler kills the process costs other events nothing: on its last attempt it is claimed alone.
func TestReclaimedEventOnItsLastAttemptIsClaimedAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	s := runtimetest.NewStore(t, pool)
	poison := runtimetest.EnqueueN(t, pool, 1)[0].ID
	pgtest.Execute(t, pool, "UPDATE testing.events SET max_attempts = 3")
	good := runtimetest.EnqueueN(t, pool, 9)
	for attempt := 1; attempt <= 3; attempt++ {
		claimed, err := s.Claim(t.Context(), queue.ClaimConfig{BatchSize: 100})
		require.NoError(t, err)
		require.Equal(t, poison, claimed[0].ID)
		require.Equal(t, attempt, claimed[0].Attempt)
		if attempt == 3 {
			require.Len(t, claimed, 1)
		} else {
			require.Greater(t, len(claimed), 1)
		}
		runtimetest.ExpireLeases(t, pool) // the process died handling it
	}
	n, err := s.SweepDead(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, "dead", runtimetest.RowOf(t, pool, poison).Status)
	require.Equal(t, len(good), runtimetest.CountWhere(t, pool, "status = 'processing' AND attempts BETWEEN 1 AND 2"))
}

func TestClaimIsReadCommittedWhateverTheDefault(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	name := pool.Config().ConnConfig.Database
	pgtest.Execute(t, pool, "ALTER DATABASE "+name+" SET default_transaction_isolation = 'serializable'")
	pgtest.Execute(t, pool, "ALTER DATABASE "+name+" SET synchronous_commit = off")
	pool = pgtest.Pool(t, pgtest.URL(t, pool))
	require.Equal(t, "serializable", pgtest.Value[string](t, pool, "SHOW transaction_isolation"))
	const n = 300
	tenant := uuid.New()
	var ms []outbox.Message
	for i := range n {
		ms = append(ms, runtimetest.Message(tenant, i))
	}
	runtimetest.EnqueueAll(t, pool, ms...)
	var wg sync.WaitGroup
	for range 4 {
		s := runtimetest.NewStore(t, pool)
		wg.Go(func() {
			for {
				claimed, err := s.Claim(t.Context(), queue.ClaimConfig{BatchSize: 10, LeaseDuration: runtimetest.LongLease})
				if !pgtest.Check(t, err) || len(claimed) == 0 {
					return
				}
				_, err = s.Ack(t.Context(), claimed...)
				pgtest.Check(t, err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, n, runtimetest.CountWhere(t, pool, "status = 'delivered' AND attempts = 1"))
}
