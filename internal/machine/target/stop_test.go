package target

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/shutdown"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// hanging is a publisher whose calls hang until their context ends or release is closed.
type hanging struct {
	called  chan struct{}
	release chan struct{}
	ended   error // the result of a call whose context has ended
}

func (h hanging) Publish(ctx context.Context, events []publish.Outgoing) []error {
	h.called <- struct{}{}
	errs := make([]error, len(events))
	select {
	case <-h.release:
	case <-ctx.Done():
		for i := range errs {
			errs[i] = h.ended
		}
	}
	return errs
}

// TestStopEndsTries: a call for a target that rests does not delay the end of the process, and says nothing about the target.
// Any other call may finish.
func TestStopEndsTries(t *testing.T) {
	t.Parallel()
	maybe := errors.New("no answer yet")
	for name, c := range map[string]struct {
		before, ended error
		want          errclass.Class
	}{
		"destination, not sent":  {outbox.Unavailable(errors.New("refused")), outbox.ErrNotSent, errclass.ClassNotSent},
		"destination, in doubt":  {outbox.Unavailable(errors.New("refused")), maybe, errclass.ClassUnavailable}, // as any failure in a rest
		"whole broker, not sent": {outbox.BrokerUnavailable(errors.New("refused")), outbox.ErrNotSent, errclass.ClassNotSent},
		"whole broker, in doubt": {outbox.BrokerUnavailable(errors.New("refused")), maybe, errclass.ClassFailed},
		"none":                   {nil, maybe, errclass.ClassDone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := hanging{called: make(chan struct{}, 1), release: make(chan struct{}), ended: c.ended}
			s := NewTargets(config.BreakerWithDefaults(outbox.Breaker{}), map[string]publish.Publisher{"kafka": p}, slog.New(slog.DiscardHandler))
			require.NoError(t, s.Add("test/said", &Route{broker: "kafka", destination: "orders"}))
			to := s.All[0]
			try(to, c.before, uuid.New())
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			results := make(chan []errclass.Result)
			work := shutdown.New(ctx).WorkCtx
			go func() { results <- to.Send(work, []publish.Outgoing{{Event: outbox.Event{ID: uuid.New()}}}) }()
			<-p.called
			stop()
			if c.before == nil {
				close(p.release)
			}
			require.Equal(t, c.want, (<-results)[0].Class)
			require.NoError(t, work.Err(), "the end of handlers comes later")
			require.Equal(t, c.before != nil, to.Resting(), "a call that was cut short is no answer")
		})
	}
}
