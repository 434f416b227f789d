package queue_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// finalisers are the ways to end or renew a claim, by name.
func finalisers(t testing.TB) map[string]func(s *queue.Store, claimed ...queue.Claimed) []queue.Outcome {
	must := func(outcomes []queue.Outcome, err error) []queue.Outcome {
		t.Helper()
		if lost := countOf(outcomes, queue.Lost); lost > 0 {
			require.ErrorIs(t, err, outbox.ErrLeaseLost)
			require.ErrorContains(t, err, fmt.Sprintf(": %d of %d events lost", lost, len(outcomes)))
		}
		if locked := countOf(outcomes, queue.Locked); locked > 0 {
			require.ErrorContains(t, err, fmt.Sprintf("%d of %d events are locked by another transaction", locked, len(outcomes)))
		}
		if countOf(outcomes, queue.Applied)+countOf(outcomes, queue.Already) == len(outcomes) {
			require.NoError(t, err)
		}
		return outcomes
	}
	return map[string]func(*queue.Store, ...queue.Claimed) []queue.Outcome{
		"ack": func(s *queue.Store, claimed ...queue.Claimed) []queue.Outcome {
			return must(s.Ack(t.Context(), claimed...))
		},
		"nack": func(s *queue.Store, claimed ...queue.Claimed) []queue.Outcome {
			return must(s.Nack(t.Context(), failures(runtimetest.ErrHandler, claimed...)...))
		},
		"release": func(s *queue.Store, claimed ...queue.Claimed) []queue.Outcome {
			return must(s.Release(t.Context(), claimed...))
		},
		"extend": func(s *queue.Store, claimed ...queue.Claimed) []queue.Outcome {
			return must(s.Extend(t.Context(), runtimetest.LongLease, claimed...))
		},
	}
}

func countOf(outcomes []queue.Outcome, o queue.Outcome) (n int) {
	for _, got := range outcomes {
		if got == o {
			n++
		}
	}
	return n
}

func failures(err error, claimed ...queue.Claimed) []queue.Failure {
	fs := make([]queue.Failure, len(claimed))
	for i, c := range claimed {
		fs[i] = queue.Failure{Claimed: c, Err: err}
	}
	return fs
}

func TestFinalisersDoWhatTheySay(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, finalise := range finalisers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			worker := uuid.New()
			s := runtimetest.StoreOf(t, pool, worker)
			runtimetest.EnqueueN(t, pool, 3)
			claimed, err := s.Claim(t.Context(), queue.ClaimConfig{BatchSize: 3, LeaseDuration: time.Minute})
			require.NoError(t, err)
			other := claimed[2]
			before := runtimetest.RowOf(t, pool, other.ID)
			require.Equal(t, runtimetest.Repeat(2, queue.Applied), finalise(s, claimed[1], claimed[0]))
			text := runtimetest.ErrHandler.Error()
			want := map[string]runtimetest.Row{
				"ack":     {Status: "delivered", Attempts: 1, Final: true},
				"nack":    {Status: "pending", Attempts: 1, LastError: &text},
				"release": {Status: "pending", Attempts: 0},
				"extend":  {Status: "processing", Attempts: 1, Locked: true},
			}[name]
			want.ClaimNo, want.MaxAttempts, want.LockedBy = 1, 25, uuid.NullUUID{UUID: worker, Valid: true}
			got := runtimetest.RowOf(t, pool, claimed[0].ID)
			require.Equal(t, want, timeless(got))
			if name == "nack" {
				require.InDelta(t, 0.75, got.DueIn, 0.3, "the default backoff of a first failure is 0.5 to 1 s")
			} else {
				require.LessOrEqual(t, got.DueIn, 0.0)
			}
			if name == "extend" {
				require.Equal(t, 2, runtimetest.CountWhere(t, pool, "locked_until > statement_timestamp() + interval '59 min'"))
			}
			require.Equal(t, timeless(before), timeless(runtimetest.RowOf(t, pool, other.ID)), "the third was not asked for")
			require.Equal(t, 2, runtimetest.CountWhere(t, pool, "updated_at > created_at AND id <> $1", other.ID))
		})
	}
}

// This is a repeat after a lost answer.
func TestFinalisersAreIdempotent(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, finalise := range finalisers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			s := runtimetest.NewStore(t, pool)
			runtimetest.EnqueueN(t, pool, 3)
			claimed := runtimetest.ClaimN(t, s, 3)
			require.Equal(t, runtimetest.Repeat(2, queue.Applied), finalise(s, claimed[:2]...))
			if name == "extend" {
				require.Equal(t, runtimetest.Repeat(2, queue.Applied), finalise(s, claimed[:2]...), "renewed again")
				return
			}
			before := runtimetest.Fingerprint(t, pool)
			require.Equal(t, runtimetest.Repeat(2, queue.Already), finalise(s, claimed[:2]...))
			require.Equal(t, before, runtimetest.Fingerprint(t, pool))
			require.Equal(t, []queue.Outcome{queue.Already, queue.Applied, queue.Already}, finalise(s, claimed[1], claimed[2], claimed[0]))
			for other, finalise := range finalisers(t) {
				if other != name {
					require.Equal(t, runtimetest.Repeat(3, queue.Lost), finalise(s, claimed...), "%s after %s", other, name)
				}
			}
		})
	}
}

func TestForeignClaimChangesNothing(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	worker := uuid.New()
	s, stranger := runtimetest.StoreOf(t, pool, worker), runtimetest.NewStore(t, pool)
	runtimetest.EnqueueN(t, pool, 5)
	claimed := runtimetest.ClaimN(t, s, 4)
	before := runtimetest.Fingerprint(t, pool)
	invented := claimed[0]
	invented.ID = uuid.New()
	pending := claimed[0]
	pending.ID, pending.ClaimNo = pgtest.Value[uuid.UUID](t, pool, "SELECT id FROM testing.events WHERE status = 'pending'"), 0
	older, newer := claimed[1], claimed[2]
	older.ClaimNo--
	newer.ClaimNo++
	for name, finalise := range finalisers(t) {
		require.Equal(t, runtimetest.Repeat(4, queue.Lost), finalise(stranger, claimed...), "%s of another worker", name)
		require.Equal(t, runtimetest.Repeat(4, queue.Lost), finalise(s, invented, pending, older, newer), "%s of no claim", name)
		require.Equal(t, before, runtimetest.Fingerprint(t, pool), name)
	}
	require.Equal(t, runtimetest.Repeat(4, queue.Applied), finalisers(t)["ack"](s, claimed...))
}

// ABA: the worker lost the event and claimed it again, or a second process runs with the same worker id.
func TestOutdatedClaimOfTheSameWorkerIsLost(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, finalise := range finalisers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			worker := uuid.New()
			first, second := runtimetest.StoreOf(t, pool, worker), runtimetest.StoreOf(t, pool, worker)
			runtimetest.EnqueueN(t, pool, 1)
			old := runtimetest.ClaimN(t, first, 1)
			runtimetest.ExpireLeases(t, pool)
			current := runtimetest.ClaimN(t, second, 1)
			before := runtimetest.Fingerprint(t, pool)
			require.Equal(t, runtimetest.Repeat(1, queue.Lost), finalise(first, old...))
			require.Equal(t, before, runtimetest.Fingerprint(t, pool))
			// Both in one batch: each gets its own outcome.
			require.Equal(t, []queue.Outcome{queue.Lost, queue.Applied, queue.Lost}, finalise(second, old[0], current[0], old[0]))
		})
	}
}

// A stopped process resumes after another has taken over, or after the other is done.
func TestWorkerThatLostItsLeaseIsRefused(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, finalise := range finalisers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			outdated, successor := runtimetest.NewStore(t, pool), runtimetest.NewStore(t, pool)
			runtimetest.EnqueueN(t, pool, 2)
			old := runtimetest.ClaimN(t, outdated, 2)
			runtimetest.ExpireLeases(t, pool)
			current := runtimetest.ClaimN(t, successor, 2)
			require.Equal(t, runtimetest.Repeat(2, queue.Lost), finalise(outdated, old...))
			outcomes, err := successor.Ack(t.Context(), current...)
			require.NoError(t, err)
			require.Equal(t, runtimetest.Repeat(2, queue.Applied), outcomes)
			before := runtimetest.Fingerprint(t, pool)
			require.Equal(t, runtimetest.Repeat(2, queue.Lost), finalise(outdated, old...))
			require.Equal(t, before, runtimetest.Fingerprint(t, pool))
		})
	}
}

// The other worker takes over while the finalisation is under way: the guard is checked again under the lock.
func TestClaimThatIsLostWhileItIsFinalised(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, finalise := range finalisers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			s := runtimetest.NewStore(t, pool)
			runtimetest.EnqueueN(t, pool, 2)
			claimed := runtimetest.ClaimN(t, s, 2)
			tx := pgtest.Begin(t, pool, pgx.TxOptions{})
			_, err := tx.Exec(t.Context(), `UPDATE testing.events SET claim_no = claim_no + 1, attempts = attempts + 1, locked_by = gen_random_uuid() WHERE id = $1`, claimed[0].ID)
			require.NoError(t, err)
			if name == "extend" { // it does not wait for locks
				require.Equal(t, []queue.Outcome{queue.Locked, queue.Applied}, finalise(s, claimed...))
				require.NoError(t, tx.Commit(t.Context()))
				require.Equal(t, []queue.Outcome{queue.Lost, queue.Applied}, finalise(s, claimed...))
				return
			}
			got := make(chan []queue.Outcome, 1)
			go func() { got <- finalise(s, claimed...) }()
			pgtest.AwaitBlocked(t, pool, 1)
			require.NoError(t, tx.Commit(t.Context()))
			before := runtimetest.RowOf(t, pool, claimed[0].ID)
			require.Equal(t, []queue.Outcome{queue.Lost, queue.Applied}, <-got)
			require.Equal(t, timeless(before), timeless(runtimetest.RowOf(t, pool, claimed[0].ID)))
			require.Equal(t, 1, runtimetest.CountWhere(t, pool, "status = 'processing' AND claim_no = 2"))
		})
	}
}

// The finalisation is late, but nobody has taken over, so it is applied.
func TestLeaseThatRanOutMayStillBeFinalised(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, finalise := range finalisers(t) {
		pool := pgtest.Database(t)
		s := runtimetest.NewStore(t, pool)
		runtimetest.EnqueueN(t, pool, 1)
		claimed := runtimetest.ClaimN(t, s, 1)
		runtimetest.ExpireLeases(t, pool)
		require.Equal(t, runtimetest.Repeat(1, queue.Applied), finalise(s, claimed...), name)
		if name == "extend" {
			runtimetest.ClaimN(t, runtimetest.NewStore(t, pool), 0)
		}
	}
}

func TestDeadEventStaysDead(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	s := runtimetest.NewStore(t, pool)
	runtimetest.EnqueueN(t, pool, 1)
	claimed := runtimetest.ClaimN(t, s, 1)
	pgtest.Execute(t, pool, "UPDATE testing.events SET attempts = max_attempts")
	runtimetest.ExpireLeases(t, pool)
	n, err := s.SweepDead(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)
	before := runtimetest.Fingerprint(t, pool)
	for name, finalise := range finalisers(t) {
		require.Equal(t, runtimetest.Repeat(1, queue.Lost), finalise(s, claimed...), "late %s", name)
		require.Equal(t, before, runtimetest.Fingerprint(t, pool))
	}
}

func TestNothingToFinalise(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	s := runtimetest.NewStore(t, pool)
	for name, finalise := range finalisers(t) {
		require.Empty(t, finalise(s), name)
	}
	_, err := s.Extend(t.Context(), 0, queue.Claimed{})
	require.ErrorContains(t, err, "lease")
	_, err = s.Extend(t.Context(), -runtimetest.LongLease, queue.Claimed{})
	require.ErrorContains(t, err, "lease")
	require.Equal(t, "applied already lost Outcome(0)", fmt.Sprint(queue.Applied, queue.Already, queue.Lost, queue.Outcome(0)))
}

func TestSameEventTwiceInOneCall(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, finalise := range finalisers(t) {
		pool := pgtest.Database(t)
		s := runtimetest.NewStore(t, pool)
		runtimetest.EnqueueN(t, pool, 1)
		c := runtimetest.ClaimN(t, s, 1)[0]
		for _, o := range finalise(s, c, c) {
			require.Contains(t, []queue.Outcome{queue.Applied, queue.Already}, o, name)
		}
		require.LessOrEqual(t, runtimetest.CountWhere(t, pool, "attempts = 0"), map[string]int{"release": 1}[name])
	}
}

func TestNackDecidesInTheDatabase(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	s := runtimetest.NewStore(t, pool)
	runtimetest.EnqueueN(t, pool, 7)
	claimed := runtimetest.ClaimN(t, s, 7)
	pgtest.Execute(t, pool, "UPDATE testing.events SET attempts = 25 WHERE id = $1", claimed[0].ID) // unknown to the worker
	pgtest.Execute(t, pool, "UPDATE testing.events SET max_attempts = 1 WHERE id = $1", claimed[1].ID)
	in := func(d time.Duration) time.Time { return time.Now().Add(d) }
	fs := failures(runtimetest.ErrHandler, claimed...)
	fs[2].Err = fmt.Errorf("wrapped: %w", outbox.Permanent(runtimetest.ErrHandler))
	fs[3].Err = fmt.Errorf("wrapped: %w", outbox.RetryAfter(time.Hour, runtimetest.ErrHandler))
	fs[4].RetryAt = in(2 * time.Hour)
	fs[5].Err, fs[5].RetryAt = outbox.RetryAfter(time.Hour, runtimetest.ErrHandler), in(-time.Hour)
	fs[6].Err = nil
	outcomes, err := s.Nack(t.Context(), fs...)
	require.NoError(t, err)
	require.Equal(t, runtimetest.Repeat(7, queue.Applied), outcomes)
	for i, want := range []struct {
		status string
		dueIn  float64
	}{{"dead", 0}, {"dead", 0}, {"dead", 0}, {"pending", 3600}, {"pending", 7200}, {"pending", -3600}, {"pending", 0.75}} {
		r := runtimetest.RowOf(t, pool, claimed[i].ID)
		require.Equal(t, want.status, r.Status, i)
		require.Equal(t, want.status == "dead", r.Final, i)
		require.False(t, r.Locked)
		if want.status == "pending" {
			require.InDelta(t, want.dueIn, r.DueIn, 20, i)
		}
		require.NotEmpty(t, *r.LastError)
	}
	runtimetest.ClaimN(t, s, 1)
}

// A nack must succeed with any error and time, because otherwise the event would be reclaimed forever.
func TestNackSucceedsWithAnyErrorAndTime(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	s := runtimetest.NewStore(t, pool)
	bad := map[string]error{
		"NUL":              errors.New("a\x00b\x00"),
		"bad UTF-8":        errors.New("\xff\xfea\xc3"),
		"surrogates":       errors.New("\xed\xa0\x80\xed\xb0\x80"),
		"10 MB":            errors.New(strings.Repeat("x", 10<<20)),
		"10 MB of garbage": errors.New(strings.Repeat("\xf0\x9f", 5<<20)),
		"10 MB of NUL":     errors.New(strings.Repeat("\x00", 10<<20)),
		"cut in a rune":    errors.New("x" + strings.Repeat("€", 4096)),
		"empty":            errors.New(""),
		"none":             nil,
		"nil pointer":      (*brokenError)(nil),
		"panics":           &brokenError{},
		"joined":           errors.Join(runtimetest.ErrHandler, (*brokenError)(nil)),
	}
	times := map[string]time.Time{
		"far":      time.Unix(1<<55, 0),
		"past":     time.Unix(-1<<55, 0),
		"year 300": time.Date(300_000, 1, 1, 0, 0, 0, 0, time.UTC),
		"max":      time.Unix(math.MaxInt64-62135596801, 999999999),
	}
	delays := map[string]time.Duration{"longest": math.MaxInt64, "negative": math.MinInt64}
	runtimetest.EnqueueN(t, pool, len(bad)+len(times)+len(delays))
	claimed := runtimetest.ClaimN(t, s, len(bad)+len(times)+len(delays))
	i := 0
	nack := func(name string, f queue.Failure) runtimetest.Row {
		t.Helper()
		f.Claimed = claimed[i]
		i++
		outcomes, err := s.Nack(t.Context(), f)
		require.NoError(t, err, name)
		require.Equal(t, runtimetest.Repeat(1, queue.Applied), outcomes, name)
		return runtimetest.RowOf(t, pool, f.ID)
	}
	for name, err := range bad {
		r := nack(name, queue.Failure{Err: err})
		require.LessOrEqual(t, len(*r.LastError), 2048, name)
		require.NotContains(t, *r.LastError, "\x00")
	}
	for name, at := range times {
		nack(name, queue.Failure{Err: runtimetest.ErrHandler, RetryAt: at})
	}
	for name, d := range delays {
		nack(name, queue.Failure{Err: outbox.RetryAfter(d, runtimetest.ErrHandler)})
	}
	require.Equal(t, len(claimed), runtimetest.CountWhere(t, pool, "status = 'pending'"))
}

type brokenError struct{ text *string }

func (e *brokenError) Error() string { return *e.text }
