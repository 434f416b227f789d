package queue

import (
	"cmp"
	"errors"
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

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// A producer that commits asynchronously may lose its last commits in a crash. An event that was handled must not be
// among them: its effects would be visible although it was never committed.
func TestClaimSurvivesACrashThoughCommitsAreAsynchronous(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	server := pgtest.Server(t, pgserver.Options{MaxConnections: 20, Settings: map[string]string{
		"synchronous_commit": "off", "wal_writer_delay": "10s", "autovacuum": "off", "bgwriter_delay": "10s",
	}})
	pool := pgtest.Pool(t, server.URL())
	_, err := migrate.Up(t.Context(), pool, "outbox")
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), "CHECKPOINT")
	require.NoError(t, err)
	put(t, pool, "handled", 1)
	s := storeWith(t, pool, nil)
	claimed, err := s.Claim(t.Context(), ClaimConfig{LeaseDuration: time.Hour})
	require.NoError(t, err)
	require.Len(t, claimed, 1)
	put(t, pool, "unseen", 1)
	require.NoError(t, server.Kill())
	require.NoError(t, server.Restart())
	pool = pgtest.Pool(t, server.URL())
	require.Equal(t, map[string]int{"handled processing": 1}, statuses(t, pool), "the event that was not claimed shows that this server forgets")
	outcomes, err := storeAs(t, pool, s.worker).Ack(t.Context(), claimed...)
	require.NoError(t, err)
	require.Equal(t, []Outcome{Applied}, outcomes)
}

func storeAs(t testing.TB, pool *pgxpool.Pool, worker uuid.UUID) *Store {
	t.Helper()
	s, err := NewStore(pool, StoreConfig{Namespace: "test", WorkerID: worker})
	require.NoError(t, err)
	return s
}

// shortDeadlocks makes the server detect deadlocks quickly, and returns a pool for sessions that may deadlock.
func shortDeadlocks(t testing.TB, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	_, err := pool.Exec(t.Context(), "ALTER DATABASE "+pool.Config().ConnConfig.Database+" SET deadlock_timeout = '5ms'")
	require.NoError(t, err)
	return pgtest.Pool(t, pgtest.URL(t, pool))
}

func TestFinalisersSweepAndPruneNeverDeadlock(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const sessions, rounds, n = 4, 40, 60
	admin := pgtest.Database(t)
	pool := shortDeadlocks(t, admin)
	worker := uuid.New() // the same for all, so that every session may change every row
	for round := range rounds {
		retention := outbox.Retention{Delivered: time.Microsecond, Dead: time.Microsecond}
		if round%2 == 1 {
			retention.DeleteOnAck = true
		}
		put(t, admin, "ping", n)
		claimed, err := storeAs(t, pool, worker).Claim(t.Context(), ClaimConfig{BatchSize: n})
		require.NoError(t, err)
		require.NotEmpty(t, claimed)
		_, err = admin.Exec(t.Context(), `UPDATE testing.events SET attempts = max_attempts, locked_until = statement_timestamp() - interval '1 s'
			WHERE status = 'processing' AND random() < 0.2`)
		require.NoError(t, err)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for session := range sessions {
			mine := append([]Claimed{}, claimed...)
			rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
			s := storeAs(t, pool, worker)
			s.policies = map[string]policy{"ping": {retry: config.RetryWithDefaults(outbox.Retry{}), retention: retention}}
			wg.Go(func() {
				<-start
				var err error
				switch session {
				case 0:
					err = trouble(s.Ack(t.Context(), mine[:len(mine)/2]...))
				case 1:
					fs := make([]Failure, len(mine))
					for i, c := range mine {
						fs[i] = Failure{Claimed: c, Err: errors.New("x")}
					}
					err = trouble(s.Nack(t.Context(), fs...))
				case 2:
					err = trouble(s.Extend(t.Context(), time.Minute, mine...))
					if err == nil {
						err = trouble(s.Release(t.Context(), mine[len(mine)/2:]...))
					}
				case 3:
					if _, err = s.SweepDead(t.Context()); err == nil {
						_, err = s.Prune(t.Context())
					}
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		close(start)
		wg.Wait()
		_, err = admin.Exec(t.Context(), "UPDATE testing.events SET next_attempt_at = statement_timestamp() WHERE finalized_at IS NULL")
		require.NoError(t, err)
	}
	pool.Close() // the end of a session flushes its statistics
	require.Zero(t, deadlocks(t, admin))
}

// trouble drops the error of a finalisation if it has an outcome for each event.
func trouble(outcomes []Outcome, err error) error {
	if len(outcomes) > 0 && !slices.Contains(outcomes, 0) {
		return nil
	}
	return err
}

func deadlocks(t testing.TB, pool *pgxpool.Pool) (n int) {
	t.Helper()
	require.Eventually(t, func() bool { // the sessions of the closed pool have ended
		var others int
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_stat_activity AS a
			WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid())`).Scan(&others))
		return others <= int(pool.Stat().TotalConns())-1
	}, testPatience, 5*time.Millisecond)
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").Scan(&n))
	return n
}

// Two round trips of one worker id, each with an ack and a nack, can still deadlock. PostgreSQL aborts one of them,
// which is run again.
func TestDeadlockIsRetried(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	admin := pgtest.Database(t)
	pool := shortDeadlocks(t, admin)
	worker := uuid.New()
	a, b := storeAs(t, pool, worker), storeAs(t, pool, worker)
	rounds := 0
	for ; rounds < 400; rounds++ {
		put(t, admin, "ping", 2)
		claimed, err := a.Claim(t.Context(), ClaimConfig{BatchSize: 2})
		require.NoError(t, err)
		require.Len(t, claimed, 2)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i, s := range []*Store{a, b} {
			why := errclass.Of(outbox.Permanent(errors.New("x")))
			x := &roundTrip{settlements: []settlement{{kind: acking, claimed: &claimed[i]}, {kind: nacking, claimed: &claimed[1-i], why: &why}}}
			wg.Go(func() {
				<-start
				if err := s.roundTrip(t.Context(), x); err != nil {
					t.Error(err)
				}
			})
		}
		close(start)
		wg.Wait()
		if rounds%20 == 19 {
			pool.Reset() // ends the sessions, which flushes their statistics
			if deadlocks(t, admin) > 0 {
				break
			}
		}
	}
	require.Less(t, rounds, 400, "no deadlock came about")
	require.NotContains(t, statuses(t, admin), "ping processing")
}

// The classic claim by IN (SELECT ... LIMIT n) leases more than n rows if the planner runs the subquery once per row.
// Our claim must not, under the same settings.
func TestClaimKeepsItsLimitInAForcedNestedLoop(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	put(t, pool, "ping", 50)
	name := pool.Config().ConnConfig.Database
	for _, off := range []string{"hashjoin", "mergejoin", "hashagg", "sort", "material", "memoize"} {
		_, err := pool.Exec(t.Context(), "ALTER DATABASE "+name+" SET enable_"+off+" = off")
		require.NoError(t, err)
	}
	pool = pgtest.Pool(t, pgtest.URL(t, pool))
	errUndo := errors.New("undo")
	require.ErrorIs(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(t.Context(), `UPDATE outbox.queue SET attempts = attempts + 1 WHERE id IN (
			SELECT id FROM outbox.queue WHERE namespace = 'test' AND lane = outbox.lane('ping')
			ORDER BY next_attempt_at, id LIMIT 5 FOR UPDATE SKIP LOCKED)`)
		if err == nil && tag.RowsAffected() <= 5 {
			err = fmt.Errorf("the classic claim took %d: these settings show nothing", tag.RowsAffected())
		}
		return cmp.Or(err, errUndo)
	}), errUndo)
	s := storeWith(t, pool, nil)
	for _, size := range []int{1, 5, 7} {
		claimed, err := s.Claim(t.Context(), ClaimConfig{BatchSize: size})
		require.NoError(t, err)
		require.Len(t, claimed, size)
	}
	require.Equal(t, map[string]int{"ping pending": 37, "ping processing": 13}, statuses(t, pool))
	// The same without SessionGuard.
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SET LOCAL jit = off") // it would take seconds to compile a plan whose cost is made up
		require.NoError(t, err)
		c, err := ClaimConfig{BatchSize: 5}.claim()
		require.NoError(t, err)
		w := core.NewWalk(core.LanesOf([]string{"ping"}))
		c.Starts = w.Pieces(c.Size, false)
		rows, err := s.db.On(tx).EventClaim(t.Context(), s.claimParams(c))
		rows = slices.DeleteFunc(rows, func(r queries.EventClaimRow) bool { return r.ClaimNo == 0 }) // the ends
		require.Len(t, rows, 5)
		return err
	})
	require.NoError(t, err)
	require.Equal(t, map[string]int{"ping pending": 32, "ping processing": 18}, statuses(t, pool))
}
