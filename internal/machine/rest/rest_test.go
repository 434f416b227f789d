package rest

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/outbox"
)

// start is when the tests begin.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// broker returns destinations of one broker.
func broker(b outbox.Breaker, names ...string) (all []*Target) {
	b = config.BreakerWithDefaults(b)
	of := &Target{Name: "kafka", Kind: Broker, Breaker: b}
	for _, name := range names {
		all = append(all, &Target{Name: "kafka:" + name, Kind: Destination, Breaker: b, Broker: of, ReturnPending: true})
	}
	of.Destinations = all
	return all
}

// oneTarget returns the only destination of a broker.
func oneTarget(_ *testing.T, b outbox.Breaker) *Target { return broker(b, "orders")[0] }

// try makes err the result of ids in to, a moment after now, and returns the results.
func try(now *time.Time, to *Target, err error, ids ...uuid.UUID) []errclass.Result {
	errs := make([]error, len(ids))
	for i := range errs {
		errs[i] = err
	}
	results := errclass.All(errs)
	*now = now.Add(time.Nanosecond)
	to.OnResults(*now, *now, ids, results)
	return results
}

func newIDs(n int) []uuid.UUID {
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = uuid.New()
	}
	return ids
}

func admitted(now time.Time, to *Target, n int) int {
	n, _ = to.Admit(now, n)
	return n
}

func TestRestAdmitsOneEventAfterEachPause(t *testing.T) {
	t.Parallel()
	now := start
	to := oneTarget(t, outbox.Breaker{FirstPause: time.Hour, MaxPause: time.Hour})
	require.Equal(t, 7, admitted(now, to, 7))
	try(&now, to, outbox.Unavailable(errors.New("refused")), newIDs(7)...)
	require.True(t, to.Resting())
	require.Zero(t, admitted(now, to, 7), "it rests")
	require.Equal(t, "refused", to.Why().Text)
	now = now.Add(to.Left(now)) // the pause is over
	require.Equal(t, 1, admitted(now, to, 7))
	require.Zero(t, admitted(now, to, 7), "one is under way")
	try(&now, to, outbox.Unavailable(errors.New("refused")), uuid.New())
	require.Zero(t, admitted(now, to, 7))
	require.Equal(t, 2, to.tries)
	now = now.Add(to.Left(now))
	require.Equal(t, 1, admitted(now, to, 7))
	try(&now, to, nil, uuid.New())
	require.False(t, to.Resting())
	require.Equal(t, 7, admitted(now, to, 7))
	require.Zero(t, to.tries)
}

// TestPausesAreBounded: no pause is longer than MaxPause, however often the target was found unavailable.
func TestPausesAreBounded(t *testing.T) {
	t.Parallel()
	now := start
	to := oneTarget(t, outbox.Breaker{})
	for range 100 {
		require.Equal(t, 1, admitted(now, to, 1))
		try(&now, to, outbox.Unavailable(errors.New("refused")), uuid.New())
		require.LessOrEqual(t, to.Left(now), 1500*time.Millisecond)
		now = now.Add(to.Left(now))
	}
}

func TestRestIsNotProlongedByWhatWasUnderWay(t *testing.T) {
	t.Parallel()
	now := start
	to := oneTarget(t, outbox.Breaker{})
	before := now
	for range 5 {
		try(&now, to, outbox.Unavailable(errors.New("refused")), uuid.New())
	}
	require.Equal(t, 1, to.tries)
	to.OnResults(now, before, newIDs(1), []errclass.Result{{}})
	require.True(t, to.Resting(), "what began before the rest does not show that it is over")
}

func TestBreakerCountsDifferentEventsInARow(t *testing.T) {
	t.Parallel()
	now := start
	failure := errors.New("500")
	to := oneTarget(t, outbox.Breaker{Failures: 3})
	bad := newIDs(3)
	for range 5 {
		require.Equal(t, errclass.ClassFailed, try(&now, to, failure, bad[0])[0].Class, "one bad event is not an outage")
	}
	try(&now, to, failure, bad[1])
	try(&now, to, nil, uuid.New())
	require.Equal(t, errclass.ClassFailed, try(&now, to, failure, bad[0], bad[1])[0].Class, "counted again since one was delivered")
	require.False(t, to.Resting())
	require.Equal(t, errclass.ClassUnavailable, try(&now, to, failure, bad[2])[0].Class)
	require.True(t, to.Resting())
	now = now.Add(to.Left(now))
	require.Equal(t, 1, admitted(now, to, 1))
	require.Equal(t, errclass.ClassUnavailable, try(&now, to, failure, bad[0])[0].Class, "the one that was tried is not charged either")
	try(&now, to, outbox.Permanent(errors.New("400")), bad[0])
	require.False(t, to.Resting(), "it has answered")

	all := try(&now, oneTarget(t, outbox.Breaker{Failures: 3}), failure, newIDs(5)...)
	for _, r := range all {
		require.Equal(t, errclass.ClassUnavailable, r.Class, "of one call, those before the third are not charged either")
	}
	require.Equal(t, errclass.ClassFailed, try(&now, oneTarget(t, outbox.Breaker{Failures: -1}), failure, newIDs(50)...)[49].Class, "it is off")
}

func TestBrokerRestsAsAWhole(t *testing.T) {
	t.Parallel()
	now := start
	all := broker(outbox.Breaker{}, "one", "two")
	one, two := all[0], all[1]
	try(&now, one, outbox.Unavailable(errors.New("no rights")), uuid.New())
	require.True(t, one.Resting())
	require.False(t, two.Resting())
	try(&now, two, outbox.BrokerUnavailable(errors.New("nobody home")), uuid.New())
	require.True(t, two.Resting())
	require.Zero(t, admitted(now, two, 1))
	one.Broker.until = now
	require.Zero(t, admitted(now, one, 3), "it rests because of its own failures")
	require.Equal(t, 1, admitted(now, two, 3), "and leaves the try to the other")
	try(&now, two, nil, uuid.New())
	require.False(t, two.Resting())
	require.True(t, one.Resting())
}

func TestRestOfAHandlerEndsWithAnyAnswer(t *testing.T) {
	t.Parallel()
	now := start
	to := &Target{Name: "a/a", Breaker: config.BreakerWithDefaults(outbox.Breaker{})}
	for range 20 {
		require.Equal(t, errclass.ClassFailed, try(&now, to, errors.New("failed"), uuid.New())[0].Class, "failures of a handler are those of its events")
	}
	require.Equal(t, errclass.ClassUnavailable, try(&now, to, outbox.BrokerUnavailable(errors.New("away")), uuid.New())[0].Class)
	require.True(t, to.Resting())
	require.Equal(t, errclass.ClassFailed, try(&now, to, errors.New("failed"), uuid.New())[0].Class)
	require.False(t, to.Resting())
	try(&now, to, outbox.Unavailable(outbox.RetryAfter(time.Minute, errors.New("429"))), uuid.New())
	require.Greater(t, to.Left(now), 50*time.Second, "the target has said when")
	try(&now, to, nil, uuid.New())
	for _, err := range []error{outbox.ErrBehind, outbox.ErrNotSent} {
		require.Equal(t, errclass.ClassUnavailable, try(&now, to, err, uuid.New())[0].Class, "of a handler, it says the same")
		require.True(t, to.Resting())
		try(&now, to, nil, uuid.New())
	}
	try(&now, to, outbox.Unimplemented("a/a"), uuid.New())
	require.Greater(t, to.Left(now), 20*time.Second, "nothing changes before a deployment")
}

func TestTryThatFindsNothingOutIsFollowedByAPause(t *testing.T) {
	t.Parallel()
	now := start
	to := oneTarget(t, outbox.Breaker{FirstPause: time.Hour, MaxPause: time.Hour})
	try(&now, to, outbox.Unavailable(errors.New("refused")), uuid.New())
	now = now.Add(to.Left(now))
	require.Equal(t, 1, admitted(now, to, 1))
	try(&now, to, outbox.ErrNotSent, uuid.New())
	require.Zero(t, admitted(now, to, 1))
	require.Positive(t, to.Left(now))
}

// TestBrokerThatIsBackTellsAllItsDestinations: the events that wait for them in the database have waited for the
// broker.
func TestBrokerThatIsBackTellsAllItsDestinations(t *testing.T) {
	t.Parallel()
	now := start
	all := broker(outbox.Breaker{}, "one", "two")
	one, two := all[0], all[1]
	for _, to := range all {
		try(&now, to, nil, uuid.New())
		require.True(t, to.TakeReturned(), "it has answered for the first time")
		require.False(t, to.TakeReturned())
	}
	try(&now, one, outbox.BrokerUnavailable(errors.New("nobody home")), uuid.New())
	try(&now, one, nil, uuid.New())
	require.True(t, one.TakeReturned())
	require.True(t, two.TakeReturned())
	require.False(t, two.TakeReturned(), "once")
}

// TestCallsOfSeveralShards: each shard has its own call, and the target waits until all have returned.
func TestCallsOfSeveralShards(t *testing.T) {
	t.Parallel()
	now := start
	to := oneTarget(t, outbox.Breaker{})
	to.CallBegins(now)
	to.CallBegins(now.Add(time.Second))
	to.CallEnds(now.Add(time.Second))
	_, at := to.Stalled(now)
	require.Equal(t, now.Add(StallAfter), at, "the call of the other shard is still under way")
	to.Abandon()
	to.Abandon()
	require.True(t, to.IsAway())
	to.KeepLateResults(newIDs(1), []errclass.Result{{}})
	require.Zero(t, admitted(now, to, 1), "what the other call has sent must not be overtaken")
	to.CallEnds(now)
	to.KeepLateResults(newIDs(1), []errclass.Result{{}})
	require.Equal(t, 1, admitted(now, to, 1))
	require.False(t, to.IsAway())
	_, at = to.Stalled(now)
	require.Zero(t, at)
}

// TestRefuses: a destination that rests or has stalled takes no events until its pause is over or its call returns.
func TestRefuses(t *testing.T) {
	t.Parallel()
	now := start
	to := oneTarget(t, outbox.Breaker{FirstPause: time.Hour, MaxPause: time.Hour})
	_, ok := to.Refuses(now)
	require.True(t, ok)
	to.CallBegins(now)
	_, ok = to.Refuses(now)
	require.True(t, ok, "it has not stalled yet")
	require.Equal(t, now.Add(StallAfter), to.Next(now), "the dispatcher wakes up then")
	why, ok := to.Refuses(now.Add(StallAfter))
	require.False(t, ok)
	require.Contains(t, why.Text, "kafka:orders")
	to.CallEnds(now)
	require.Zero(t, to.Next(now))
	for range 1000 {
		to.LaterDelay()
	}
	slow := to.LaterDelay()
	to.CallReturned()
	require.Less(t, to.handedBack, 2, "delays begin small again")
	require.LessOrEqual(t, to.LaterDelay(), slow)

	try(&now, to, outbox.Unavailable(errors.New("refused")), uuid.New())
	_, ok = to.Refuses(now)
	require.False(t, ok)
	now = to.Next(now)
	_, ok = to.Refuses(now)
	require.True(t, ok, "one event is tried")
	require.Equal(t, 1, admitted(now, to, 7))
	require.Zero(t, admitted(now, to, 7))
}

// TestLateResults: the result of a call that has outlived its lease is kept until its event is read again. Meanwhile no
// event is tried, whatever the broker says.
func TestLateResults(t *testing.T) {
	t.Parallel()
	now, id := start, uuid.New()
	to := oneTarget(t, outbox.Breaker{})
	_, is := to.TakeLateResult(id)
	require.False(t, is)
	to.Abandon()
	require.True(t, to.IsAbandoned())
	require.Contains(t, to.Why().Text, "has not returned yet")
	require.Zero(t, admitted(now, to, 1))
	try(&now, to, outbox.BrokerUnavailable(errors.New("nobody home")), uuid.New())
	require.Equal(t, "nobody home", to.Why().Text)
	now = now.Add(to.Left(now))
	require.Zero(t, admitted(now, to, 1), "the broker's try is given back")
	require.True(t, to.Tryable(now))
	to.RequestTry()
	require.False(t, to.Tryable(now))
	to.OnTry(now, false)
	require.Positive(t, to.Left(now))
	to.KeepLateResults([]uuid.UUID{id}, []errclass.Result{{Text: "late"}})
	r, is := to.TakeLateResult(id)
	require.True(t, is)
	require.Equal(t, "late", r.Text)
	require.Zero(t, to.Since())
}

// TestCutCall: that a call was cut short says nothing about its target, unless it rests anyway.
func TestCutCall(t *testing.T) {
	t.Parallel()
	now := start
	to := oneTarget(t, outbox.Breaker{Failures: 1})
	cut := func() errclass.Class {
		results := []errclass.Result{errclass.New(errclass.ClassFailed, "no answer yet")}
		to.OnCall(now, now, newIDs(1), results, true)
		return results[0].Class
	}
	require.Equal(t, errclass.ClassFailed, cut(), "it is an attempt")
	require.False(t, to.Resting())
	try(&now, to, outbox.Unavailable(errors.New("refused")), uuid.New())
	require.Equal(t, errclass.ClassUnavailable, cut())
}
