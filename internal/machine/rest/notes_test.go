package rest

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/outbox"
)

var (
	away    = outbox.Unavailable(errors.New("refused"))
	refused = outbox.Permanent(errors.New("400"))
)

// notes makes err the result of one event in to, a second after now, and returns what is told of it.
func notes(now *time.Time, to *Target, errs ...error) []Note {
	*now = now.Add(time.Second)
	return to.OnResults(*now, *now, newIDs(len(errs)), errclass.All(errs))
}

// TestNotesOfARest: a rest is told when it begins and when it ends, and the first delivery after an end without one.
func TestNotesOfARest(t *testing.T) {
	t.Parallel()
	now, to := start, oneTarget(t, outbox.Breaker{FirstPause: time.Second, MaxPause: time.Second})
	for _, step := range []struct {
		err  error
		want []Change
	}{
		{nil, nil}, {refused, nil},
		{away, []Change{Began}}, {away, nil}, {refused, []Change{Ended}}, {refused, nil}, {nil, []Change{Delivers}}, {nil, nil},
		{away, []Change{Began}}, {nil, []Change{Ended}}, {nil, nil},
		{away, []Change{Began}}, {refused, []Change{Ended}}, {away, []Change{Began}}, {nil, []Change{Ended}}, {nil, nil},
	} {
		var got []Change
		for _, n := range notes(&now, to, step.err) {
			require.Same(t, to, n.Target)
			got = append(got, n.Change)
		}
		require.Equal(t, step.want, got, "after %v", step.err)
	}
	notes(&now, to, away, away)
	notes(&now, to, away)
	end := notes(&now, to, nil)[0]
	require.Equal(t, 2*time.Second, end.Rested)
	require.Equal(t, 2, end.Tries)
	require.Equal(t, 3, end.HandedBack)
}

// TestHandedBackIsCountedOnce: an event that is handed back for a broker is counted for its destination.
func TestHandedBackIsCountedOnce(t *testing.T) {
	t.Parallel()
	now, to := start, oneTarget(t, outbox.Breaker{})
	notes(&now, to, outbox.BrokerUnavailable(errors.New("nobody home")))
	all := notes(&now, to, nil)
	require.Len(t, all, 1)
	require.Same(t, to.Broker, all[0].Target)
	require.Zero(t, all[0].HandedBack)
}

// TestOnlyFailuresAreHandedBack: what else is in the call with which an outage is found keeps its result, and so do
// failures if the breaker is off.
func TestOnlyFailuresAreHandedBack(t *testing.T) {
	t.Parallel()
	failure := errors.New("500")
	for _, c := range []struct {
		failures int
		errs     []error
		want     []errclass.Class
	}{
		{1, []error{nil, failure}, []errclass.Class{errclass.ClassDone, errclass.ClassUnavailable}},
		{1, []error{refused, failure}, []errclass.Class{errclass.ClassRefused, errclass.ClassUnavailable}},
		{-1, []error{failure, away}, []errclass.Class{errclass.ClassFailed, errclass.ClassUnavailable}},
	} {
		now, to := start, oneTarget(t, outbox.Breaker{Failures: c.failures})
		results := errclass.All(c.errs)
		to.OnResults(now, now, newIDs(len(c.errs)), results)
		require.True(t, to.Resting())
		for i, want := range c.want {
			require.Equal(t, want, results[i].Class)
		}
	}
}

// TestPausesGrowWithFailedTries: after an outage that failures have shown, each failed try makes the pause longer.
func TestPausesGrowWithFailedTries(t *testing.T) {
	t.Parallel()
	now, to := start, oneTarget(t, outbox.Breaker{Failures: 3, FirstPause: time.Second, MaxPause: time.Hour})
	to.Random = func(d time.Duration) time.Duration { return d }
	notes(&now, to, away)
	for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second} {
		require.Equal(t, want, to.Left(now))
		now = now.Add(to.Left(now) - time.Second)
		require.Zero(t, admitted(now, to, 1))
		now = now.Add(time.Second)
		require.Equal(t, 1, admitted(now, to, 1))
		notes(&now, to, errors.New("500"))
	}
}

// TestAnswerOfADestinationEndsTheRestOfItsBroker: who says that one destination is away has answered.
func TestAnswerOfADestinationEndsTheRestOfItsBroker(t *testing.T) {
	t.Parallel()
	now, to := start, oneTarget(t, outbox.Breaker{})
	notes(&now, to, outbox.BrokerUnavailable(errors.New("nobody home")))
	require.True(t, to.Broker.Rests())
	notes(&now, to, away)
	require.False(t, to.Broker.Rests())
	require.True(t, to.Rests())
}

// TestTries: one event at a time finds out whether a target is available again, and a try of another is not counted.
func TestTries(t *testing.T) {
	t.Parallel()
	now, to := start, oneTarget(t, outbox.Breaker{FirstPause: time.Hour, MaxPause: time.Hour})
	require.False(t, to.Tryable(now), "it does not rest")
	notes(&now, to, away)
	require.False(t, to.Tryable(now), "its pause is not over")
	until := now.Add(to.Left(now))
	notes(&now, to, outbox.ErrNotSent)
	require.Equal(t, until, now.Add(to.Left(now)), "an event that was no try does not prolong the pause")
	now = until
	require.True(t, to.Tryable(now))

	require.Equal(t, 1, admitted(now, to, 1))
	require.False(t, to.Tryable(now), "one is under way")
	to.OnResults(now, now, nil, nil)
	require.Equal(t, 1, admitted(now, to, 1), "nothing was tried")
	to.Untried()
	require.Equal(t, 1, admitted(now, to, 1))
	to.Untried()

	to.RequestTry()
	require.False(t, to.Tryable(now), "one is being claimed")
	to.OnTry(now, true)
	require.True(t, to.Tryable(now), "the pause after a try is that of its result")
	to.RequestTry()
	to.OnTry(now, false)
	require.Positive(t, to.Left(now), "there was nothing to try")

	handler := &Target{Name: "a/a", Breaker: to.Breaker}
	require.False(t, handler.Tryable(now))
	notes(&now, handler, away)
	now = now.Add(handler.Left(now))
	require.True(t, handler.Tryable(now))
}

// TestTryOfWhatRestsNoMore: a target that answers while an event is being claimed for it does not rest, whatever the
// claim finds.
func TestTryOfWhatRestsNoMore(t *testing.T) {
	t.Parallel()
	now, to := start, oneTarget(t, outbox.Breaker{FirstPause: time.Hour, MaxPause: time.Hour})
	notes(&now, to, away)
	now = now.Add(to.Left(now))
	to.RequestTry()
	notes(&now, to, nil)
	to.OnTry(now, false)
	require.Zero(t, to.Left(now))
	require.Equal(t, 7, admitted(now, to, 7))
	notes(&now, to, away)
	require.True(t, to.Rests(), "it rests again at once")

	now, to = start, oneTarget(t, outbox.Breaker{FirstPause: time.Minute, MaxPause: time.Minute})
	notes(&now, to, away)
	now = now.Add(to.Left(now))
	to.RequestTry()
	notes(&now, to, outbox.BrokerUnavailable(errors.New("nobody home")))
	left := to.Broker.Left(now)
	now = now.Add(left / 2)
	before := to.Broker.Left(now)
	to.OnTry(now, false)
	require.Equal(t, before, to.Broker.Left(now), "it was no try of the broker")
}

// TestReturnIsTakenOnce: that a target is available again is reported once, and not before it has answered or while it
// rests.
func TestReturnIsTakenOnce(t *testing.T) {
	t.Parallel()
	now, to := start, oneTarget(t, outbox.Breaker{})
	require.False(t, to.TakeReturned(), "it has not answered yet")
	notes(&now, to, refused)
	require.True(t, to.TakeReturned())
	require.False(t, to.TakeReturned())
	require.False(t, to.TakeReturned())
	notes(&now, to, nil)
	require.False(t, to.TakeReturned(), "nothing has changed")
	to.Abandon()
	to.RestoreReturned()
	require.False(t, to.TakeReturned(), "a call has not returned")
	to.KeepLateResults(nil, nil)
	require.True(t, to.TakeReturned())
}

// TestClean: a target is like a new one unless it rests, has failed, or has not delivered since its rest.
func TestClean(t *testing.T) {
	t.Parallel()
	now, to := start, oneTarget(t, outbox.Breaker{Failures: 3})
	require.True(t, to.IsClean())
	require.False(t, to.IsAbandoned())
	notes(&now, to, errors.New("500"))
	require.False(t, to.IsClean(), "it has failed")
	notes(&now, to, nil)
	require.True(t, to.IsClean())
	notes(&now, to, away)
	require.False(t, to.IsClean(), "it rests")
	notes(&now, to, refused)
	require.False(t, to.IsClean(), "it has not delivered")
	notes(&now, to, nil)
	require.True(t, to.IsClean())
}

// TestFailuresOfCallsThatWereNotCut: they count.
func TestFailuresOfCallsThatWereNotCut(t *testing.T) {
	t.Parallel()
	now, to := start, oneTarget(t, outbox.Breaker{Failures: 1})
	to.OnCall(now, now, newIDs(1), errclass.All([]error{errors.New("500")}), false)
	require.True(t, to.Rests())
}

// TestLateResultsAreLimited: the results of events that are never read again are forgotten some time.
func TestLateResultsAreLimited(t *testing.T) {
	t.Parallel()
	to := oneTarget(t, outbox.Breaker{})
	keep := func(ids ...uuid.UUID) {
		to.Abandon()
		to.KeepLateResults(ids, make([]errclass.Result, len(ids)))
	}
	ids := newIDs(maxLateResults)
	keep(ids...)
	last := uuid.New()
	keep(last)
	_, kept := to.TakeLateResult(ids[0])
	require.True(t, kept)
	keep(ids[0])
	keep(last)
	_, kept = to.TakeLateResult(last)
	require.True(t, kept)
	_, kept = to.TakeLateResult(ids[1])
	require.False(t, kept)
}
