package outbox

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/mark"
)

// oneTarget returns the only destination of a broker, with a publisher that must not be called.
func oneTarget(t *testing.T, b Breaker) *target {
	t.Helper()
	s := newTargets(breakerWithDefaults(b), map[string]Publisher{"kafka": unused{}}, slog.New(slog.DiscardHandler))
	require.NoError(t, s.add("test/said", &publication{broker: "kafka", destination: "orders"}))
	return s.all[0]
}

type unused struct{}

func (unused) Publish(context.Context, []Outgoing) []error { panic("called") }

// try has n events of to come to results of err, and returns those.
func try(to *target, err error, ids ...uuid.UUID) []mark.Result {
	errs := make([]error, len(ids))
	for i := range errs {
		errs[i] = err
	}
	results := mark.All(errs)
	to.onResults(time.Now(), ids, results)
	return results
}

func newIDs(n int) []uuid.UUID {
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = uuid.New()
	}
	return ids
}

func TestRestAdmitsOneEventAfterEachPause(t *testing.T) {
	t.Parallel()
	to := oneTarget(t, Breaker{FirstPause: time.Hour, MaxPause: time.Hour})
	require.Equal(t, 7, admitted(to, 7))
	try(to, Unavailable(errors.New("refused")), newIDs(7)...)
	require.True(t, to.resting())
	require.Zero(t, admitted(to, 7), "it rests")
	require.Equal(t, "refused", to.why().Text)
	to.until = time.Now() // the pause is over
	require.Equal(t, 1, admitted(to, 7))
	require.Zero(t, admitted(to, 7), "one is under way")
	try(to, Unavailable(errors.New("refused")), uuid.New())
	require.Zero(t, admitted(to, 7))
	require.Equal(t, 2, to.tries)
	to.until = time.Now()
	require.Equal(t, 1, admitted(to, 7))
	try(to, nil, uuid.New())
	require.False(t, to.resting())
	require.Equal(t, 7, admitted(to, 7))
	require.Zero(t, to.tries)
}

func TestRestIsNotProlongedByWhatWasUnderWay(t *testing.T) {
	t.Parallel()
	to := oneTarget(t, Breaker{})
	before := time.Now()
	for range 5 {
		try(to, Unavailable(errors.New("refused")), uuid.New())
	}
	require.Equal(t, 1, to.tries)
	to.onResults(before, newIDs(1), []mark.Result{{}})
	require.True(t, to.resting(), "what began before the rest does not show that it is over")
}

func TestBreakerCountsDifferentEventsInARow(t *testing.T) {
	t.Parallel()
	failure := errors.New("500")
	to := oneTarget(t, Breaker{Failures: 3})
	bad := newIDs(3)
	for range 5 {
		require.Equal(t, mark.ClassFailed, try(to, failure, bad[0])[0].Class, "one bad event is no outage")
	}
	try(to, failure, bad[1])
	try(to, nil, uuid.New())
	require.Equal(t, mark.ClassFailed, try(to, failure, bad[0], bad[1])[0].Class, "counted again since one was delivered")
	require.False(t, to.resting())
	require.Equal(t, mark.ClassUnavailable, try(to, failure, bad[2])[0].Class)
	require.True(t, to.resting())
	to.until = time.Now()
	require.Equal(t, 1, admitted(to, 1))
	require.Equal(t, mark.ClassUnavailable, try(to, failure, bad[0])[0].Class, "the one that was tried is not charged either")
	try(to, Permanent(errors.New("400")), bad[0])
	require.False(t, to.resting(), "it has answered")

	all := try(oneTarget(t, Breaker{Failures: 3}), failure, newIDs(5)...)
	for _, r := range all {
		require.Equal(t, mark.ClassUnavailable, r.Class, "of one call, those before the third are not charged either")
	}
	require.Equal(t, mark.ClassFailed, try(oneTarget(t, Breaker{Failures: -1}), failure, newIDs(50)...)[49].Class, "it is off")
}

func TestBrokerRestsAsAWhole(t *testing.T) {
	t.Parallel()
	s := newTargets(breakerWithDefaults(Breaker{}), map[string]Publisher{"kafka": unused{}}, slog.New(slog.DiscardHandler))
	for topic, destination := range map[string]string{"a/a": "one", "a/b": "two", "a/c": "two"} {
		require.NoError(t, s.add(topic, &publication{broker: "kafka", destination: destination}))
	}
	require.Len(t, s.all, 2)
	one, two := s.byTopic["a/a"], s.byTopic["a/b"]
	require.Same(t, two, s.byTopic["a/c"])
	try(one, Unavailable(errors.New("no rights")), uuid.New())
	require.True(t, one.resting())
	require.False(t, two.resting())
	try(two, BrokerUnavailable(errors.New("nobody home")), uuid.New())
	require.True(t, two.resting())
	require.Zero(t, admitted(two, 1))
	one.broker.until = time.Now()
	require.Zero(t, admitted(one, 3), "it rests for a reason of its own")
	require.Equal(t, 1, admitted(two, 3), "and leaves the try to the other")
	try(two, nil, uuid.New())
	require.False(t, two.resting())
	require.True(t, one.resting())
}

func TestRestOfAHandlerEndsWithAnyAnswer(t *testing.T) {
	t.Parallel()
	s := newTargets(breakerWithDefaults(Breaker{}), nil, slog.New(slog.DiscardHandler))
	require.NoError(t, s.add("a/a", nil))
	to := s.all[0]
	for range 20 {
		require.Equal(t, mark.ClassFailed, try(to, errors.New("failed"), uuid.New())[0].Class, "failures of a handler are those of its events")
	}
	require.Equal(t, mark.ClassUnavailable, try(to, BrokerUnavailable(errors.New("away")), uuid.New())[0].Class)
	require.True(t, to.resting())
	require.Equal(t, mark.ClassFailed, try(to, errors.New("failed"), uuid.New())[0].Class)
	require.False(t, to.resting())
	try(to, Unavailable(RetryAfter(time.Minute, errors.New("429"))), uuid.New())
	require.Greater(t, to.left(), 50*time.Second, "the target has said when")
	try(to, nil, uuid.New())
	for _, err := range []error{ErrBehind, ErrNotSent} {
		require.Equal(t, mark.ClassUnavailable, try(to, err, uuid.New())[0].Class, "of a handler, it says the same")
		require.True(t, to.resting())
		try(to, nil, uuid.New())
	}
	try(to, Unimplemented("a/a"), uuid.New())
	require.Greater(t, to.left(), 20*time.Second, "nothing changes before a deployment")
}

func admitted(to *target, n int) int {
	n, _ = to.admit(n)
	return n
}

// TestWhatIsNotAdmittedHasAReason, also when the target comes back in that moment: without a reason it would pass for
// delivered.
func TestWhatIsNotAdmittedHasAReason(t *testing.T) {
	t.Parallel()
	to := oneTarget(t, Breaker{FirstPause: time.Hour, MaxPause: time.Hour})
	over := make(chan struct{})
	go func() {
		defer close(over)
		for range 20_000 {
			try(to, Unavailable(errors.New("refused")), uuid.Nil)
			try(to, nil, uuid.Nil)
		}
	}()
	for {
		select {
		case <-over:
			return
		default:
		}
		if n, why := to.admit(2); n < 2 {
			require.Equal(t, mark.ClassUnavailable, why.Class)
		}
	}
}

func TestTryThatFindsNothingOutIsFollowedByAPause(t *testing.T) {
	t.Parallel()
	to := oneTarget(t, Breaker{FirstPause: time.Hour, MaxPause: time.Hour})
	try(to, Unavailable(errors.New("refused")), uuid.New())
	to.until = time.Now()
	require.Equal(t, 1, admitted(to, 1))
	try(to, ErrNotSent, uuid.New())
	require.Zero(t, admitted(to, 1))
	require.Positive(t, to.left())
}

// TestBrokerThatIsBackTellsAllItsDestinations: what waits for them in the database has waited for the broker.
func TestBrokerThatIsBackTellsAllItsDestinations(t *testing.T) {
	t.Parallel()
	s := newTargets(breakerWithDefaults(Breaker{}), map[string]Publisher{"kafka": unused{}}, slog.New(slog.DiscardHandler))
	for _, name := range []string{"one", "two"} {
		require.NoError(t, s.add("a/"+name, &publication{broker: "kafka", destination: name}))
	}
	one, two := s.byTopic["a/one"], s.byTopic["a/two"]
	for _, to := range s.all {
		try(to, nil, uuid.New())
		require.True(t, to.takeReturned(), "it has answered for the first time")
		require.False(t, to.takeReturned())
	}
	try(one, BrokerUnavailable(errors.New("nobody home")), uuid.New())
	try(one, nil, uuid.New())
	require.True(t, one.takeReturned())
	require.True(t, two.takeReturned())
	require.False(t, two.takeReturned(), "once")
}

// TestCallsOfSeveralShards: each has a call of its own, and the target is behind until all have returned.
func TestCallsOfSeveralShards(t *testing.T) {
	t.Parallel()
	to := oneTarget(t, Breaker{})
	now := time.Now()
	first, second := to.callBegins(now), to.callBegins(now.Add(time.Second))
	second()
	_, at := to.stalled(now)
	require.Equal(t, now.Add(stallAfter), at, "the call of the other shard is still under way")
	to.leaveBehind()
	to.leaveBehind()
	require.EqualValues(t, 1, to.away.Load())
	to.keepLateResults(newIDs(1), []mark.Result{{}})
	require.Zero(t, admitted(to, 1), "what the other call has sent must not be overtaken")
	first()
	to.keepLateResults(newIDs(1), []mark.Result{{}})
	require.Equal(t, 1, admitted(to, 1))
	require.Zero(t, to.away.Load())
	_, at = to.stalled(now)
	require.Zero(t, at)
}
