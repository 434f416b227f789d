package target

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// oneTarget returns the only destination of a broker, with a publisher that must not be called.
func oneTarget(t *testing.T, b outbox.Breaker) *Target {
	t.Helper()
	s := NewTargets(config.BreakerWithDefaults(b), map[string]publish.Publisher{"kafka": unused{}}, slog.New(slog.DiscardHandler))
	require.NoError(t, s.Add("test/said", &Route{broker: "kafka", destination: "orders"}))
	return s.All[0]
}

type unused struct{}

func (unused) Publish(context.Context, []publish.Outgoing) []error { panic("called") }

// try makes err the result of ids in to, and returns the results.
func try(to *Target, err error, ids ...uuid.UUID) []errclass.Result {
	errs := make([]error, len(ids))
	for i := range errs {
		errs[i] = err
	}
	results := errclass.All(errs)
	to.OnResults(time.Now(), ids, results)
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
	to := oneTarget(t, outbox.Breaker{FirstPause: time.Hour, MaxPause: time.Hour})
	require.Equal(t, 7, admitted(to, 7))
	try(to, outbox.Unavailable(errors.New("refused")), newIDs(7)...)
	require.True(t, to.Resting())
	require.Zero(t, admitted(to, 7), "it rests")
	require.Equal(t, "refused", to.Why().Text)
	to.until = time.Now() // the pause is over
	require.Equal(t, 1, admitted(to, 7))
	require.Zero(t, admitted(to, 7), "one is under way")
	try(to, outbox.Unavailable(errors.New("refused")), uuid.New())
	require.Zero(t, admitted(to, 7))
	require.Equal(t, 2, to.tries)
	to.until = time.Now()
	require.Equal(t, 1, admitted(to, 7))
	try(to, nil, uuid.New())
	require.False(t, to.Resting())
	require.Equal(t, 7, admitted(to, 7))
	require.Zero(t, to.tries)
}

// TestPausesAreBounded: no pause is longer than MaxPause, however often the target was found unavailable.
func TestPausesAreBounded(t *testing.T) {
	t.Parallel()
	to := oneTarget(t, outbox.Breaker{})
	for range 100 {
		require.Equal(t, 1, admitted(to, 1))
		try(to, outbox.Unavailable(errors.New("refused")), uuid.New())
		require.LessOrEqual(t, to.left(), 1500*time.Millisecond)
		to.until = time.Now()
	}
}

func TestRestIsNotProlongedByWhatWasUnderWay(t *testing.T) {
	t.Parallel()
	to := oneTarget(t, outbox.Breaker{})
	before := time.Now()
	for range 5 {
		try(to, outbox.Unavailable(errors.New("refused")), uuid.New())
	}
	require.Equal(t, 1, to.tries)
	to.OnResults(before, newIDs(1), []errclass.Result{{}})
	require.True(t, to.Resting(), "what began before the rest does not show that it is over")
}

func TestBreakerCountsDifferentEventsInARow(t *testing.T) {
	t.Parallel()
	failure := errors.New("500")
	to := oneTarget(t, outbox.Breaker{Failures: 3})
	bad := newIDs(3)
	for range 5 {
		require.Equal(t, errclass.ClassFailed, try(to, failure, bad[0])[0].Class, "one bad event is not an outage")
	}
	try(to, failure, bad[1])
	try(to, nil, uuid.New())
	require.Equal(t, errclass.ClassFailed, try(to, failure, bad[0], bad[1])[0].Class, "counted again since one was delivered")
	require.False(t, to.Resting())
	require.Equal(t, errclass.ClassUnavailable, try(to, failure, bad[2])[0].Class)
	require.True(t, to.Resting())
	to.until = time.Now()
	require.Equal(t, 1, admitted(to, 1))
	require.Equal(t, errclass.ClassUnavailable, try(to, failure, bad[0])[0].Class, "the one that was tried is not charged either")
	try(to, outbox.Permanent(errors.New("400")), bad[0])
	require.False(t, to.Resting(), "it has answered")

	all := try(oneTarget(t, outbox.Breaker{Failures: 3}), failure, newIDs(5)...)
	for _, r := range all {
		require.Equal(t, errclass.ClassUnavailable, r.Class, "of one call, those before the third are not charged either")
	}
	require.Equal(t, errclass.ClassFailed, try(oneTarget(t, outbox.Breaker{Failures: -1}), failure, newIDs(50)...)[49].Class, "it is off")
}

func TestBrokerRestsAsAWhole(t *testing.T) {
	t.Parallel()
	s := NewTargets(config.BreakerWithDefaults(outbox.Breaker{}), map[string]publish.Publisher{"kafka": unused{}}, slog.New(slog.DiscardHandler))
	for topic, destination := range map[string]string{"a/a": "one", "a/b": "two", "a/c": "two"} {
		require.NoError(t, s.Add(topic, &Route{broker: "kafka", destination: destination}))
	}
	require.Len(t, s.All, 2)
	one, two := s.ByTopic["a/a"], s.ByTopic["a/b"]
	require.Same(t, two, s.ByTopic["a/c"])
	try(one, outbox.Unavailable(errors.New("no rights")), uuid.New())
	require.True(t, one.Resting())
	require.False(t, two.Resting())
	try(two, outbox.BrokerUnavailable(errors.New("nobody home")), uuid.New())
	require.True(t, two.Resting())
	require.Zero(t, admitted(two, 1))
	one.broker.until = time.Now()
	require.Zero(t, admitted(one, 3), "it rests because of its own failures")
	require.Equal(t, 1, admitted(two, 3), "and leaves the try to the other")
	try(two, nil, uuid.New())
	require.False(t, two.Resting())
	require.True(t, one.Resting())
}

func TestRestOfAHandlerEndsWithAnyAnswer(t *testing.T) {
	t.Parallel()
	s := NewTargets(config.BreakerWithDefaults(outbox.Breaker{}), nil, slog.New(slog.DiscardHandler))
	require.NoError(t, s.Add("a/a", nil))
	to := s.All[0]
	for range 20 {
		require.Equal(t, errclass.ClassFailed, try(to, errors.New("failed"), uuid.New())[0].Class, "failures of a handler are those of its events")
	}
	require.Equal(t, errclass.ClassUnavailable, try(to, outbox.BrokerUnavailable(errors.New("away")), uuid.New())[0].Class)
	require.True(t, to.Resting())
	require.Equal(t, errclass.ClassFailed, try(to, errors.New("failed"), uuid.New())[0].Class)
	require.False(t, to.Resting())
	try(to, outbox.Unavailable(outbox.RetryAfter(time.Minute, errors.New("429"))), uuid.New())
	require.Greater(t, to.left(), 50*time.Second, "the target has said when")
	try(to, nil, uuid.New())
	for _, err := range []error{outbox.ErrBehind, outbox.ErrNotSent} {
		require.Equal(t, errclass.ClassUnavailable, try(to, err, uuid.New())[0].Class, "of a handler, it says the same")
		require.True(t, to.Resting())
		try(to, nil, uuid.New())
	}
	try(to, outbox.Unimplemented("a/a"), uuid.New())
	require.Greater(t, to.left(), 20*time.Second, "nothing changes before a deployment")
}

func admitted(to *Target, n int) int {
	n, _ = to.Admit(n)
	return n
}

// TestWhatIsNotAdmittedHasAReason: an event that is not admitted has a reason, even if the target becomes available in
// that moment. Without a reason it would count as delivered.
func TestWhatIsNotAdmittedHasAReason(t *testing.T) {
	t.Parallel()
	to := oneTarget(t, outbox.Breaker{FirstPause: time.Hour, MaxPause: time.Hour})
	over := make(chan struct{})
	go func() {
		defer close(over)
		for range 20_000 {
			try(to, outbox.Unavailable(errors.New("refused")), uuid.Nil)
			try(to, nil, uuid.Nil)
		}
	}()
	for {
		select {
		case <-over:
			return
		default:
		}
		if n, why := to.Admit(2); n < 2 {
			require.Equal(t, errclass.ClassUnavailable, why.Class)
		}
	}
}

func TestTryThatFindsNothingOutIsFollowedByAPause(t *testing.T) {
	t.Parallel()
	to := oneTarget(t, outbox.Breaker{FirstPause: time.Hour, MaxPause: time.Hour})
	try(to, outbox.Unavailable(errors.New("refused")), uuid.New())
	to.until = time.Now()
	require.Equal(t, 1, admitted(to, 1))
	try(to, outbox.ErrNotSent, uuid.New())
	require.Zero(t, admitted(to, 1))
	require.Positive(t, to.left())
}

// TestBrokerThatIsBackTellsAllItsDestinations: the events that wait for them in the database have waited for the
// broker.
func TestBrokerThatIsBackTellsAllItsDestinations(t *testing.T) {
	t.Parallel()
	s := NewTargets(config.BreakerWithDefaults(outbox.Breaker{}), map[string]publish.Publisher{"kafka": unused{}}, slog.New(slog.DiscardHandler))
	for _, name := range []string{"one", "two"} {
		require.NoError(t, s.Add("a/"+name, &Route{broker: "kafka", destination: name}))
	}
	one, two := s.ByTopic["a/one"], s.ByTopic["a/two"]
	for _, to := range s.All {
		try(to, nil, uuid.New())
		require.True(t, to.TakeReturned(), "it has answered for the first time")
		require.False(t, to.TakeReturned())
	}
	try(one, outbox.BrokerUnavailable(errors.New("nobody home")), uuid.New())
	try(one, nil, uuid.New())
	require.True(t, one.TakeReturned())
	require.True(t, two.TakeReturned())
	require.False(t, two.TakeReturned(), "once")
}

// TestCallsOfSeveralShards: each shard has its own call, and the target waits until all have returned.
func TestCallsOfSeveralShards(t *testing.T) {
	t.Parallel()
	to := oneTarget(t, outbox.Breaker{})
	now := time.Now()
	first, second := to.callBegins(now), to.callBegins(now.Add(time.Second))
	second()
	_, at := to.Stalled(now)
	require.Equal(t, now.Add(StallAfter), at, "the call of the other shard is still under way")
	to.Abandon()
	to.Abandon()
	require.EqualValues(t, 1, to.away.Load())
	to.KeepLateResults(newIDs(1), []errclass.Result{{}})
	require.Zero(t, admitted(to, 1), "what the other call has sent must not be overtaken")
	first()
	to.KeepLateResults(newIDs(1), []errclass.Result{{}})
	require.Equal(t, 1, admitted(to, 1))
	require.Zero(t, to.away.Load())
	_, at = to.Stalled(now)
	require.Zero(t, at)
}

// TestBackIsSaidAfterADelivery: a rest also ends when the target answers in another way. Then the log says so, and says "back"
// when an event was delivered.
func TestBackIsSaidAfterADelivery(t *testing.T) {
	t.Parallel()
	const (
		resting = "WARN resting: the target is unavailable, its events wait and no attempt is charged"
		refuses = "WARN rest is over: the target refuses an event permanently, and it becomes a dead letter"
		answers = "INFO rest is over: the target answers, and no event has been delivered yet"
		back    = "INFO back: events are delivered again"
	)
	away, brokerAway := outbox.Unavailable(errors.New("no topic")), outbox.BrokerUnavailable(errors.New("refused"))
	refused, failed := outbox.Permanent(errors.New("no topic for a minute")), errors.New("failed")
	for name, c := range map[string]struct {
		handler bool
		results []error
		want    []string
	}{
		"delivered":                  {results: []error{away, nil, nil}, want: []string{resting + " orders", back + " orders"}},
		"refused, later delivered":   {results: []error{away, refused, refused, nil, nil}, want: []string{resting + " orders", refuses + " orders", back + " orders"}},
		"refused and away again":     {results: []error{away, refused, away, nil}, want: []string{resting + " orders", refuses + " orders", resting + " orders", back + " orders"}},
		"broker is back, not topic":  {results: []error{brokerAway, away, refused, nil}, want: []string{resting, answers, resting + " orders", refuses + " orders", back, back + " orders"}},
		"broker is back, not events": {results: []error{brokerAway, refused, nil}, want: []string{resting, answers, back}},
		"handler answers":            {handler: true, results: []error{away, failed, failed, nil}, want: []string{resting + " test/said", answers + " test/said", back + " test/said"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lines lineLog
			s := NewTargets(config.BreakerWithDefaults(outbox.Breaker{FirstPause: time.Nanosecond}), map[string]publish.Publisher{"kafka": unused{}}, slog.New(&lines))
			route := &Route{broker: "kafka", destination: "orders"}
			if c.handler {
				route = nil
			}
			require.NoError(t, s.Add("test/said", route))
			for _, err := range c.results {
				try(s.All[0], err, uuid.New())
			}
			require.Equal(t, c.want, lines.lines)
		})
	}
}

// lineLog keeps the lines that are logged: level, text, and the destination of a target.
type lineLog struct{ lines []string }

func (*lineLog) Enabled(context.Context, slog.Level) bool { return true }
func (l *lineLog) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l *lineLog) WithGroup(string) slog.Handler          { return l }

func (l *lineLog) Handle(_ context.Context, r slog.Record) error {
	line := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool {
		if _, destination, ok := strings.Cut(a.Value.String(), ":"); a.Key == "target" && ok {
			line += " " + destination
		} else if a.Key == "target" && a.Value.String() != "kafka" {
			line += " " + a.Value.String()
		}
		return true
	})
	l.lines = append(l.lines, line)
	return nil
}
