package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
)

// twoDestinations is a broker of which one destination is away in its own way.
type twoDestinations struct {
	bad  func(ctx context.Context, events []outbox.Outgoing) []error
	good func(events []outbox.Outgoing)
}

// Publish implements outbox.Publisher.
func (d *twoDestinations) Publish(ctx context.Context, events []outbox.Outgoing) []error {
	for _, e := range events {
		if e.Destination != events[0].Destination {
			panic("a call with two destinations")
		}
	}
	if events[0].Destination == "bad" {
		return d.bad(ctx, events)
	}
	d.good(events)
	return make([]error, len(events))
}

// badDestinations are the ways in which a destination may be away.
var badDestinations = map[string]func(context.Context, []outbox.Outgoing) []error{
	"refusing":       everyError(outbox.Unavailable(errors.New("connection refused"))),
	"without rights": everyError(outbox.Unavailable(errors.New("not authorised"))),
	"429":            everyError(outbox.Unavailable(outbox.RetryAfter(time.Second, errors.New("429 too many requests")))),
	"500":            everyError(errors.New("500 internal server error")),
	"hanging": func(ctx context.Context, events []outbox.Outgoing) []error {
		<-ctx.Done()
		return everyError(outbox.ErrNotSent)(ctx, events)
	},
}

// destinationTopics go to two destinations, with the same keys.
func destinationTopics(log bool) (bad, good outbox.Topic[said]) {
	bad = altered(saidTopic, func(s *outbox.TopicSpec) { s.Log, s.Name = log, "bad" })
	good = altered(bad, func(s *outbox.TopicSpec) { s.Name = "good" })
	return bad, good
}

// newTwoDestinations returns a dispatcher or listener that publishes to both destinations.
func newTwoDestinations(t testing.TB, pool *pgxpool.Pool, log bool, p outbox.Publisher) runner {
	bad, good := destinationTopics(log)
	publishers := map[string]outbox.Publisher{"kafka": p}
	if !log {
		cfg := outbox.DispatcherConfig{Logger: quiet(), Publishers: publishers, ShutdownTimeout: time.Millisecond}
		return dispatcher(t, pool, cfg,
			outbox.Publish(bad, outbox.Publication{Broker: "kafka", Destination: "bad"}),
			outbox.Publish(good, outbox.Publication{Broker: "kafka", Destination: "good"}))
	}
	l, err := outbox.NewListener(pool, outbox.ListenerSpec{Name: "both"}, outbox.ListenerConfig{Logger: quiet(), Publishers: publishers, ShutdownTimeout: time.Millisecond},
		outbox.ListenPublish(bad, outbox.Publication{Broker: "kafka", Destination: "bad"}),
		outbox.ListenPublish(good, outbox.Publication{Broker: "kafka", Destination: "good"}))
	require.NoError(t, err)
	return l
}

// enqueueDestinations enqueues n events to each destination, in leases, and the keys are those of both.
func enqueueDestinations(t testing.TB, pool *pgxpool.Pool, log bool, n int, both bool) {
	bad, good := destinationTopics(log)
	inTx(t, pool, func(tx pgx.Tx) {
		for i := 0; i < n; i += 10 {
			var events []said
			for j := range 10 {
				events = append(events, said{Key: fmt.Sprint("k", (i+j)%200), N: i + j})
			}
			_, err := good.Untyped().EnqueueMany(t.Context(), tx, events)
			require.NoError(t, err)
			if both {
				_, err = bad.Untyped().EnqueueMany(t.Context(), tx, events)
				require.NoError(t, err)
			}
		}
	})
}

// runner is a dispatcher or a listener.
type runner interface {
	Run(context.Context) error
	Drain(context.Context) (outbox.DrainReport, error)
}

func everyError(err error) func(context.Context, []outbox.Outgoing) []error {
	return func(_ context.Context, events []outbox.Outgoing) []error {
		errs := make([]error, len(events))
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
}
