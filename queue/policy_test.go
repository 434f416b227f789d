package queue

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// testPatience is how long a test waits for something that must happen; it expires only if something is broken.
const testPatience = 2 * time.Minute

// storeWith returns a store that knows the policies of its topics, as a dispatcher's does.
func storeWith(t testing.TB, pool *pgxpool.Pool, policies map[string]policy) *Store {
	t.Helper()
	s, err := NewStore(pool, StoreConfig{Namespace: "test"})
	require.NoError(t, err)
	s.policies = policies
	return s
}

func put(t testing.TB, pool *pgxpool.Pool, topic string, n int) {
	t.Helper()
	ms := make([]outbox.Message, n)
	for i := range ms {
		ms[i] = outbox.Message{Namespace: "test", Topic: topic, Payload: []byte("1")}
	}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := outbox.EnqueueMany(t.Context(), tx, "", ms)
		return err
	}))
}

func statuses(t testing.TB, pool *pgxpool.Pool) map[string]int {
	t.Helper()
	rows, err := pool.Query(t.Context(), "SELECT topic || ' ' || status, count(*) FROM outbox.event_status GROUP BY 1")
	require.NoError(t, err)
	counts := map[string]int{}
	var name string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&name, &n}, func() error {
		counts[name] = n
		return nil
	})
	require.NoError(t, err)
	return counts
}

func TestAckDeletesWhereNoHistoryIsKept(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	s := storeWith(t, pool, map[string]policy{
		"gone": {retention: config.RetentionWithDefaults(outbox.Retention{DeleteOnAck: true, Dead: time.Hour})},
		"kept": {retention: config.RetentionWithDefaults(outbox.Retention{Delivered: time.Hour})},
	})
	put(t, pool, "gone", 3)
	put(t, pool, "kept", 2)
	claimed, err := s.Claim(t.Context(), ClaimConfig{})
	require.NoError(t, err)
	require.Len(t, claimed, 5)
	// One call with both, in any order, and the outcomes in the order of the call.
	mixed := []Claimed{claimed[3], claimed[0], claimed[4], claimed[1]}
	stale := claimed[2]
	stale.ClaimNo++
	outcomes, err := s.Ack(t.Context(), append(mixed, stale)...)
	require.ErrorIs(t, err, outbox.ErrLeaseLost)
	require.EqualError(t, err, "ack: 1 of 5 events lost: lease lost")
	require.Equal(t, []Outcome{Applied, Applied, Applied, Applied, Lost}, outcomes)
	require.Equal(t, map[string]int{"gone processing": 1, "kept delivered": 2}, statuses(t, pool))
	outcomes, err = s.Ack(t.Context(), mixed...)
	require.NoError(t, err)
	require.Equal(t, []Outcome{Already, Already, Already, Already}, outcomes)
	foreign := storeWith(t, pool, s.policies)
	outcomes, err = foreign.Ack(t.Context(), claimed[2])
	require.ErrorIs(t, err, outbox.ErrLeaseLost)
	require.Equal(t, []Outcome{Lost}, outcomes)
	require.Equal(t, map[string]int{"gone processing": 1, "kept delivered": 2}, statuses(t, pool))
	// A deleted event does not count as success for a nack or a release.
	outcomes, err = s.Nack(t.Context(), Failure{Claimed: claimed[0], Err: errors.New("late")})
	require.EqualError(t, err, "nack: 1 of 1 events lost: lease lost")
	require.Equal(t, []Outcome{Lost}, outcomes)
	outcomes, err = s.Release(t.Context(), claimed[0])
	require.EqualError(t, err, "release: 1 of 1 events lost: lease lost")
	require.Equal(t, []Outcome{Lost}, outcomes)
}

// A claim that was nacked or handed back must not delete the event that waits for its next attempt.
func TestLateAckDoesNotDeleteWhatIsPending(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	s := storeWith(t, pool, map[string]policy{"gone": {retry: config.RetryWithDefaults(outbox.Retry{}), retention: config.RetentionWithDefaults(outbox.Retention{DeleteOnAck: true, Dead: time.Hour})}})
	put(t, pool, "gone", 3)
	claimed, err := s.Claim(t.Context(), ClaimConfig{})
	require.NoError(t, err)
	require.Len(t, claimed, 3)
	_, err = s.Nack(t.Context(), Failure{Claimed: claimed[0], Err: errors.New("x")}, Failure{Claimed: claimed[1], Err: outbox.Permanent(errors.New("x"))})
	require.NoError(t, err)
	_, err = s.Release(t.Context(), claimed[2])
	require.NoError(t, err)
	outcomes, err := s.Ack(t.Context(), claimed...)
	require.ErrorIs(t, err, outbox.ErrLeaseLost)
	require.Equal(t, []Outcome{Lost, Lost, Lost}, outcomes)
	require.Equal(t, map[string]int{"gone pending": 2, "gone dead": 1}, statuses(t, pool))
}

// As in every finalisation, the guard is checked again under the lock.
func TestClaimThatIsLostWhileItsEventIsDeleted(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	s := storeWith(t, pool, map[string]policy{"gone": {retention: config.RetentionWithDefaults(outbox.Retention{DeleteOnAck: true, Dead: time.Hour})}})
	put(t, pool, "gone", 1)
	claimed, err := s.Claim(t.Context(), ClaimConfig{})
	require.NoError(t, err)
	got := make(chan []Outcome, 1)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "UPDATE testing.events SET claim_no = claim_no + 1")
		go func() {
			outcomes, err := s.Ack(t.Context(), claimed...)
			if !errors.Is(err, outbox.ErrLeaseLost) {
				t.Error(err)
			}
			got <- outcomes
		}()
		require.Eventually(t, func() bool {
			var waits bool
			err := pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").Scan(&waits)
			return err == nil && waits
		}, testPatience, 5*time.Millisecond)
		return err
	}))
	require.Equal(t, []Outcome{Lost}, <-got)
	require.Equal(t, map[string]int{"gone processing": 1}, statuses(t, pool))
}

func TestPruneByTheRetentionOfEachTopicAndStatus(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	s := storeWith(t, pool, map[string]policy{
		"short": {retention: config.RetentionWithDefaults(outbox.Retention{Delivered: time.Hour, Dead: 3 * time.Hour})},
		"long":  {retention: config.RetentionWithDefaults(outbox.Retention{Delivered: 1000 * time.Hour})},
		"gone":  {retention: config.RetentionWithDefaults(outbox.Retention{DeleteOnAck: true, Dead: 5 * time.Hour})},
	})
	for _, topic := range []string{"short", "long", "gone", "unknown"} {
		for _, hours := range []int{0, 2, 4, 6, 700, 800} {
			for _, status := range []string{"delivered", "dead"} {
				_, err := pool.Exec(t.Context(), `INSERT INTO testing.events (namespace, topic, payload, status, finalized_at)
					VALUES ('test', $1, '1', $2, statement_timestamp() - make_interval(hours => $3, mins => 1))`, topic, status, hours)
				require.NoError(t, err)
			}
		}
	}
	a, err := admin.New(pool, "")
	require.NoError(t, err)
	retentions := make(map[string]outbox.Retention)
	for topic, p := range s.policies {
		retentions["test/"+topic] = p.retention
	}
	dry, err := a.Preview().Prune(t.Context(), retentions)
	require.NoError(t, err)
	n, err := s.Prune(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, n, dry.Queue, "the dry run counts what is deleted")
	require.Equal(t, map[string]int{
		"short delivered": 1, "short dead": 2, "long delivered": 6, "long dead": 5, "gone dead": 3,
		"unknown delivered": 6, "unknown dead": 6,
	}, statuses(t, pool), "what a topic that deletes on ack has delivered before it did so goes too")
	require.Equal(t, 4*6*2-29, n)
}

// A dispatcher sweeps what it claims: its topics and its tenants, by its own limit of attempts.
func TestSweepKeepsToTheFiltersAndTheLimitOfTheDispatcher(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	s := storeWith(t, pool, nil)
	mine, other := uuid.New(), uuid.New()
	for _, topic := range []string{"ping", "pong"} {
		for _, tenant := range []uuid.UUID{mine, other} {
			_, err := pool.Exec(t.Context(), `INSERT INTO testing.events (namespace, topic, tenant_id, payload, attempts) VALUES ('test', $1, $2, '1', 3)`, topic, tenant)
			require.NoError(t, err)
		}
	}
	for _, c := range []struct {
		claim claim
		want  int
	}{
		{claim{}, 0}, // 3 of 25 attempts
		{claim{maxAttempts: 4}, 0},
		{claim{Claim: core.Claim{Topics: []string{"none"}}, maxAttempts: 3}, 0},
		{claim{maxAttempts: 3, tenants: []uuid.UUID{uuid.New()}}, 0},
		{claim{Claim: core.Claim{Topics: []string{"ping"}}, maxAttempts: 3, tenants: []uuid.UUID{mine}}, 1},
		{claim{Claim: core.Claim{Topics: []string{"ping"}}, maxAttempts: 2}, 1},
		{claim{maxAttempts: 1, tenants: []uuid.UUID{other}}, 1},
		{claim{maxAttempts: 3}, 1},
	} {
		n, _, err := s.sweep(t.Context(), &c.claim, 0, nil)
		require.NoError(t, err)
		require.Equal(t, c.want, n, "%+v", c.claim)
	}
	require.Equal(t, map[string]int{"ping dead": 2, "pong dead": 2}, statuses(t, pool))
}

func TestRetentionNeverThrowsDeadLettersAwayUnasked(t *testing.T) {
	t.Parallel()
	require.Equal(t, outbox.Retention{Delivered: 168 * time.Hour, Dead: 720 * time.Hour}, config.RetentionWithDefaults(outbox.Retention{}))
	require.Equal(t, outbox.Retention{Delivered: time.Hour, Dead: 720 * time.Hour}, config.RetentionWithDefaults(outbox.Retention{Delivered: time.Hour}))
	require.Equal(t, outbox.Retention{Delivered: 168 * time.Hour, Dead: time.Hour}, config.RetentionWithDefaults(outbox.Retention{Dead: time.Hour}))
	require.Equal(t, outbox.Retention{Dead: time.Hour, DeleteOnAck: true}, config.RetentionWithDefaults(outbox.Retention{Delivered: time.Hour, Dead: time.Hour, DeleteOnAck: true}))
	require.Equal(t, outbox.Retention{Delivered: 168 * time.Hour, Dead: 720 * time.Hour}, config.RetentionWithDefaults(outbox.Retention{Delivered: -1, Dead: -1}))
}

func TestNackBacksOffByTheTopicsPolicy(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	s := storeWith(t, pool, map[string]policy{"slow": {retry: outbox.Retry{BaseDelay: time.Hour, MaxDelay: 10 * time.Hour}, retention: config.RetentionWithDefaults(outbox.Retention{})}})
	put(t, pool, "slow", 1)
	for attempt, want := range []float64{1, 2, 4, 8} {
		_, err := pool.Exec(t.Context(), "UPDATE testing.events SET next_attempt_at = statement_timestamp()")
		require.NoError(t, err)
		claimed, err := s.Claim(t.Context(), ClaimConfig{})
		require.NoError(t, err)
		require.Equal(t, attempt+1, claimed[0].Attempt)
		_, err = s.Nack(t.Context(), Failure{Claimed: claimed[0], Err: errors.New("x")})
		require.NoError(t, err)
		var hours float64
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT (extract(epoch FROM next_attempt_at - statement_timestamp()) / 3600)::float8 FROM testing.events").Scan(&hours))
		require.Greater(t, hours, want/2-0.01)
		require.LessOrEqual(t, hours, want)
	}
}

func TestMarkedErrors(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	require.NoError(t, outbox.Permanent(nil))
	require.NoError(t, outbox.RetryAfter(time.Second, nil))
	require.ErrorIs(t, outbox.Permanent(cause), cause)
	require.ErrorIs(t, outbox.RetryAfter(time.Second, cause), cause)
	require.EqualError(t, outbox.Permanent(outbox.RetryAfter(1, cause)), "cause")
	retry := config.RetryWithDefaults(outbox.Retry{})
	require.True(t, outbox.IsPermanent(fmt.Errorf("x: %w", outbox.Permanent(cause))))
	require.False(t, outbox.IsPermanent(cause))
	require.False(t, outbox.IsPermanent(nil))
	require.Equal(t, time.Minute, errclass.Of(errors.Join(cause, outbox.RetryAfter(time.Minute, cause))).Delay(retry.BaseDelay, retry.MaxDelay, 1))
	require.Zero(t, errclass.Of(outbox.RetryAfter(-time.Minute, cause)).Delay(retry.BaseDelay, retry.MaxDelay, 1))
	for err, want := range map[error]errclass.Class{
		cause: errclass.ClassFailed, outbox.Permanent(outbox.Unavailable(cause)): errclass.ClassRefused, outbox.Unavailable(cause): errclass.ClassUnavailable,
		outbox.BrokerUnavailable(cause): errclass.ClassUnavailable, outbox.Unimplemented("a/b"): errclass.ClassUnavailable, outbox.ErrBehind: errclass.ClassNotSent,
		fmt.Errorf("x: %w", outbox.ErrNotSent): errclass.ClassNotSent,
	} {
		require.Equal(t, want, errclass.Of(err).Class, "%v", err)
	}
}
