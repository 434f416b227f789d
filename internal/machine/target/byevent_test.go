package target

import (
	"errors"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// manyTargets returns the target of a topic whose events say where they go.
func manyTargets(t *testing.T, o *outbox.Observer) (*Targets, *ByEvent) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	s := NewTargets(config.BreakerWithDefaults(outbox.Breaker{FirstPause: time.Hour, MaxPause: time.Hour}), map[string]publish.Publisher{"hook": unused{}}, log)
	s.Hooks = report.NewHooks(o, outbox.Runner{}, log)
	require.NoError(t, s.Add("a/a", &Route{broker: "hook", byEvent: true}))
	require.NoError(t, s.Add("a/b", &Route{broker: "hook", byEvent: true}))
	require.NoError(t, s.Add("a/c", &Route{broker: "hook", destination: "*"}))
	require.Same(t, s.ByTopic["a/a"], s.ByTopic["a/b"], "topics share the destinations of a broker")
	require.NotSame(t, s.ByTopic["a/a"], s.ByTopic["a/c"])
	require.Nil(t, s.ByTopic["a/c"].ByEvent)
	return s, s.ByTopic["a/a"].ByEvent
}

func away(b *ByEvent, destination string) {
	to := b.Enter(destination)
	try(to, outbox.Unavailable(errors.New("refused")), uuid.New())
	b.Leave(destination, to)
}

// TestDestinationsAreRememberedWhileTheyRest: a destination without events is forgotten, except while it rests or its latest
// events have failed.
func TestDestinationsAreRememberedWhileTheyRest(t *testing.T) {
	t.Parallel()
	s, b := manyTargets(t, nil)
	one := b.Enter("one")
	require.Same(t, one, b.Enter("one"), "it is in use")
	b.Leave("one", one)
	require.Len(t, b.known, 1)
	b.Leave("one", one)
	require.Empty(t, b.known)
	require.Empty(t, b.users)

	away(b, "one")
	require.True(t, b.Enter("one").Resting())
	require.False(t, s.ByTopic["a/a"].Resting(), "the topic does not rest")
	require.Equal(t, map[string]string{"hook:one": "refused"}, s.Reasons())
	require.Equal(t, []string{"hook:one"}, s.Resting())

	two := b.Enter("two")
	try(two, errors.New("500"), uuid.New())
	b.Leave("two", two)
	require.Same(t, two, b.Enter("two"))
	require.Len(t, two.failedInRow, 1)
	for _, err := range []error{outbox.Unavailable(errors.New("private")), outbox.Permanent(errors.New("private for a minute"))} {
		to := b.Enter("three")
		try(to, err, uuid.New())
		b.Leave("three", to)
		require.Contains(t, b.known, "three", "the log still has to say that it is back")
	}
	three := b.Enter("three")
	try(three, nil, uuid.New())
	b.Leave("three", three)
	require.NotContains(t, b.known, "three")
}

// TestRefuses: a destination that rests or has stalled takes no events until its pause is over or its call returns.
func TestRefuses(t *testing.T) {
	t.Parallel()
	s, b := manyTargets(t, nil)
	now := time.Now()
	to := b.Enter("one")
	_, ok := to.Refuses(now)
	require.True(t, ok)
	over := to.callBegins(now)
	_, ok = to.Refuses(now)
	require.True(t, ok, "it has not stalled yet")
	require.Equal(t, now.Add(StallAfter), s.Next(now), "the dispatcher wakes up then")
	why, ok := to.Refuses(now.Add(StallAfter))
	require.False(t, ok)
	require.Contains(t, why.Text, "hook:one")
	over()
	require.Zero(t, s.Next(now))
	for range 1000 {
		to.LaterDelay()
	}
	slow := to.LaterDelay()
	to.CallReturned()
	require.Less(t, to.handedBack, 2, "delays begin small again")
	require.LessOrEqual(t, to.LaterDelay(), slow)

	away(b, "one")
	_, ok = to.Refuses(time.Now())
	require.False(t, ok)
	to.until = time.Now()
	_, ok = to.Refuses(time.Now())
	require.True(t, ok, "one event is tried")
	require.Equal(t, 1, admitted(to, 7))
	require.Zero(t, admitted(to, 7))
}

// TestRestingDestinationsAreBounded: the memory for destinations that rest is bounded, and so is what is told of them.
func TestRestingDestinationsAreBounded(t *testing.T) {
	t.Parallel()
	resumed := 0
	s, b := manyTargets(t, &outbox.Observer{Resumed: func(outbox.Runner, string, time.Duration) { resumed++ }})
	const n = maxIdle + 500
	for i := range n {
		away(b, strconv.Itoa(i))
	}
	require.LessOrEqual(t, len(b.known), maxIdle)
	require.Equal(t, n-len(b.known), resumed, "an observer is told of those that are forgotten")
	require.EqualValues(t, len(b.known), b.away.Load())
	require.Zero(t, s.Away.Load())
	names := s.Resting()
	require.Len(t, names, maxNamed+1)
	require.Equal(t, "hook:* ("+strconv.Itoa(len(b.known)-maxNamed)+" more)", names[maxNamed])
	require.Len(t, s.Reasons(), maxNamed+1)
}
