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

func oneTarget(t *testing.T, b outbox.Breaker) *Target {
	t.Helper()
	s := NewTargets(config.BreakerWithDefaults(b), map[string]publish.Publisher{"kafka": unused{}}, slog.New(slog.DiscardHandler))
	require.NoError(t, s.Add("test/said", &Route{broker: "kafka", destination: "orders"}))
	return s.All[0]
}

type unused struct{}

func (unused) Publish(context.Context, []publish.Outgoing) []error { panic("called") }

func try(to *Target, err error, ids ...uuid.UUID) []errclass.Result {
	errs := make([]error, len(ids))
	for i := range errs {
		errs[i] = err
	}
	results := errclass.All(errs)
	to.OnResults(time.Now(), time.Now(), ids, results)
	return results
}

func newIDs(n int) []uuid.UUID {
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = uuid.New()
	}
	return ids
}

// TestWhatIsNotAdmittedHasAReason: an event that is not admitted has a reason, even if the target becomes available in
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
		if n, why := to.Admit(time.Now(), 2); n < 2 {
			require.Equal(t, errclass.ClassUnavailable, why.Class)
		}
	}
}

// TestBackIsSaidAfterADelivery: a rest also ends when the target answers in another way. Then the log says so, and says "back"
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
