package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// TwoDestinations is a broker with one good destination and one that is unavailable in the way of Bad.
type TwoDestinations struct {
	Bad  func(ctx context.Context, events []publish.Outgoing) []error
	Good func(events []publish.Outgoing)
}

// Publish implements publish.Publisher.
func (d *TwoDestinations) Publish(ctx context.Context, events []publish.Outgoing) []error {
	for _, e := range events {
		if e.Destination != events[0].Destination {
			panic("a call with two destinations")
		}
	}
	if events[0].Destination == "bad" {
		return d.Bad(ctx, events)
	}
	d.Good(events)
	return make([]error, len(events))
}

// BadDestinations are the ways in which a destination may be unavailable.
var BadDestinations = map[string]func(context.Context, []publish.Outgoing) []error{
	"refusing":       everyError(outbox.Unavailable(errors.New("connection refused"))),
	"without rights": everyError(outbox.Unavailable(errors.New("not authorised"))),
	"429":            everyError(outbox.Unavailable(outbox.RetryAfter(time.Second, errors.New("429 too many requests")))),
	"500":            everyError(errors.New("500 internal server error")),
	"hanging": func(ctx context.Context, events []publish.Outgoing) []error {
		<-ctx.Done()
		return everyError(outbox.ErrNotSent)(ctx, events)
	},
}

// DestinationTopics returns topics that go to two destinations, with the same keys.
func DestinationTopics(log bool) (bad, good outbox.Topic[Said]) {
	bad = Altered(SaidTopic, func(s *outbox.TopicSpec) { s.Log, s.Name = log, "bad" })
	good = Altered(bad, func(s *outbox.TopicSpec) { s.Name = "good" })
	return bad, good
}

// NewTwoDestinations returns a dispatcher or listener that publishes to both destinations.
func NewTwoDestinations(t testing.TB, pool *pgxpool.Pool, log bool, p publish.Publisher) Runner {
	bad, good := DestinationTopics(log)
	publishers := map[string]publish.Publisher{"kafka": p}
	if !log {
		cfg := queue.Config{Logger: DiscardLogger(), Publishers: publishers, ShutdownTimeout: time.Millisecond}
		return Dispatcher(t, pool, cfg,
			queue.Publish(bad, publish.Publication{Broker: "kafka", Destination: "bad"}),
			queue.Publish(good, publish.Publication{Broker: "kafka", Destination: "good"}))
	}
	l, err := listener.New(pool, listener.Spec{Name: "both"},
		listener.Config{Logger: DiscardLogger(), Publishers: publishers, ShutdownTimeout: time.Millisecond},
		listener.Publish(bad, publish.Publication{Broker: "kafka", Destination: "bad"}),
		listener.Publish(good, publish.Publication{Broker: "kafka", Destination: "good"}))
	require.NoError(t, err)
	return l
}

// EnqueueDestinations enqueues n events to the good destination and, if both is set, n events with the same keys to the
// bad one.
func EnqueueDestinations(t testing.TB, pool *pgxpool.Pool, log bool, n int, both bool) {
	bad, good := DestinationTopics(log)
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		for i := 0; i < n; i += 10 {
			var events []Said
			for j := range 10 {
				events = append(events, Said{Key: fmt.Sprint("k", (i+j)%200), N: i + j})
			}
			_, err := good.EnqueueMany(t.Context(), tx, events)
			require.NoError(t, err)
			if both {
				_, err = bad.EnqueueMany(t.Context(), tx, events)
				require.NoError(t, err)
			}
		}
	})
}

// Runner is a dispatcher or a listener.
type Runner interface {
	Run(context.Context) error
	Drain(context.Context) (queue.Report, error)
	DrainUpTo(context.Context, outbox.DrainLimit) (queue.Report, error)
}

func everyError(err error) func(context.Context, []publish.Outgoing) []error {
	return func(_ context.Context, events []publish.Outgoing) []error {
		errs := make([]error, len(events))
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
}
