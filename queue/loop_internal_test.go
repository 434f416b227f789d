package queue

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/outboxgen/outboxgen/internal/machine/report"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/machine/target"
	"github.com/outboxgen/outboxgen/internal/postgres/doorbell"
	"github.com/outboxgen/outboxgen/outbox"
)

// atBacklog returns a loop with two claims of a backlog under way.
func atBacklog(t *testing.T) (l *loop, first, second *pass) {
	t.Helper()
	cfg := Config{BatchSize: 100, Concurrency: 10, PollInterval: time.Second, LeaseDuration: 30 * time.Second}
	log := slog.New(slog.DiscardHandler)
	l = newLoop(t.Context(), &Dispatcher{cfg: cfg, store: &Store{}, log: log, rep: report.NewLog(log, time.Now), targets: target.NewTargets(outbox.Breaker{}, nil, log)})
	l.Sleeper = doorbell.NewSleeper(&doorbell.Config{Log: l.d.log}, time.Hour, time.Hour)
	l.backlog = true
	l.passes, l.claiming, l.reserved = 2, 100, 100
	return l, &pass{x: &roundTrip{}, want: 50}, &pass{x: &roundTrip{}, want: 50}
}

// TestClaimNextToAFailedOne: the claim found nothing, because the failed one had locked the rows, which are due again
// now. If the loop believed that nothing is due, it would sleep while nobody watches.
func TestClaimNextToAFailedOne(t *testing.T) {
	t.Parallel()
	for _, failsFirst := range []bool{false, true} {
		l, empty, failed := atBacklog(t)
		failed.err = errors.New("connection reset")
		if failsFirst {
			l.onPassDone(failed)
			l.onPassDone(empty)
		} else {
			l.onPassDone(empty)
			l.onPassDone(failed)
		}
		require.True(t, l.claimable, "failed first: %v", failsFirst)
	}
}

// TestConcurrentPassFailuresBackOffOnce: together they pause as long as one, and reports are handled meanwhile.
func TestConcurrentPassFailuresBackOffOnce(t *testing.T) {
	t.Parallel()
	l, first, second := atBacklog(t)
	first.err, second.err = context.DeadlineExceeded, context.DeadlineExceeded
	l.donePasses <- second
	l.onPassDone(first)
	require.Zero(t, l.passes, "taken in during the pause")
	require.Equal(t, 1, l.dbRetry.Tries())
}

// TestEmptyClaimKeepsWakeArmed: a claim that was under way when a poll requested another one does not withdraw the
// request to the doorbell.
func TestEmptyClaimKeepsWakeArmed(t *testing.T) {
	t.Parallel()
	l, late, _ := atBacklog(t)
	l.passes, l.claiming, l.reserved = 1, 50, 50
	require.False(t, l.Idle(), "asks the doorbell")
	l.requestClaim()
	l.onPassDone(late)
	require.True(t, l.IsAsleep())
	require.True(t, l.claimable)
}

// TestLookAfterAnEmptyClaim: a look that falls due right after a claim that found nothing waits for the pause, too.
func TestLookAfterAnEmptyClaim(t *testing.T) {
	t.Parallel()
	l, first, second := atBacklog(t)
	const took = time.Second
	for _, p := range []*pass{first, second} {
		p.began = time.Now().Add(-took)
		l.requestLook()
		l.onPassDone(p)
	}
	require.True(t, l.looks.wanted)
	require.False(t, l.looks.due(time.Now().Add(3*took)))
	require.True(t, l.looks.due(time.Now().Add(6*took)))
}

// TestPollsComeNoLaterThanAskedFor: jitter only shortens the interval, because PollInterval and MaxPollInterval bound
// the latency.
func TestPollsComeNoLaterThanAskedFor(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{0, 1, 4, time.Millisecond, 10 * time.Second, 1 << 62} {
		least := d
		for range 1000 {
			got := backoff.Within(d)
			require.LessOrEqual(t, got, d)
			require.GreaterOrEqual(t, got, d-d/5)
			least = min(least, got)
		}
		if d > time.Microsecond {
			require.Less(t, least, d-d/10, "they are spread")
		}
	}
}
