package events

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

type taker struct{}

func (taker) Publish(_ context.Context, events []publish.Outgoing) []error {
	return make([]error, len(events))
}

// TestPublishersByName: the constructors take the publishers under the names of the YAML.
func TestPublishersByName(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none") // does not connect
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	all := map[string]publish.Publisher{"sqs": taker{}, "webhook": taker{}, "bus": taker{}}
	_, err = NewOrdersDispatcher(pool, queue.Config{Publishers: all})
	require.NoError(t, err)
	_, err = NewOrdersDispatcher(pool, queue.Config{Publishers: map[string]publish.Publisher{"webhook": taker{}}})
	require.ErrorContains(t, err, "topic orders/order_placed: publishes to sqs: field Publishers has none of that name, but webhook")
	_, err = NewRelayListener(pool, listener.Config{Publishers: all})
	require.NoError(t, err)
	_, err = NewRelayListener(pool, listener.Config{})
	require.ErrorContains(t, err, "publishes to bus: field Publishers has none of that name")
}

// TestDestinations: a destination is the text of its field.
func TestDestinations(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("7f000001-89ab-4cde-8f01-23456789abcd")
	require.Equal(t, "eu", orderRoutedPublication.DestinationOf(&OrderRouted{Region: RegionEu}))
	require.Equal(t, id.String(), orderShippedPublication.DestinationOf(&OrderShipped{CustomerID: CustomerID(id)}))
	require.Equal(t, "-42", orderCountedPublication.DestinationOf(&OrderCounted{Hook: -42}))
	require.Equal(t, "a b", orderNamedPublication.DestinationOf(&OrderNamed{Hook: "a b"}))
}
