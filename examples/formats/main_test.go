package main

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/examples/formats/events"
	"github.com/outboxgen/outboxgen/examples/formats/ledger"
	"github.com/outboxgen/outboxgen/examples/formats/shop"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

func TestDemo(t *testing.T) {
	t.Parallel()
	var out lines
	require.NoError(t, demo(t.Context(), outboxtest.Postgres(t), &out, 20))
	require.Contains(t, out.text, "40 events delivered\napplication/protobuf: 20 messages, ")
	require.Contains(t, out.text, "the ledger has 20 orders, 20 of them placed and shipped\n")
}

type lines struct{ text string }

func (l *lines) Write(b []byte) (int, error) {
	l.text += string(b)
	return len(b), nil
}

// sent places and ships an order, and returns the messages by destination.
func sent(t *testing.T, pool *pgxpool.Pool, id uuid.UUID) map[string]publish.Message {
	t.Helper()
	require.NoError(t, shop.PlaceAndShip(t.Context(), pool, id, "Zoë", 1<<53+1))
	var mu sync.Mutex
	messages := make(map[string]publish.Message)
	d, err := shop.NewDispatcher(pool, func(_ context.Context, destination string, m publish.Message) error {
		mu.Lock()
		defer mu.Unlock()
		messages[destination] = m
		return nil
	}, queue.Config{})
	require.NoError(t, err)
	require.Equal(t, 2, outboxtest.Drain(t, d).Delivered)
	return messages
}

func prepared(t *testing.T) (*pgxpool.Pool, *consume.Consumer) {
	t.Helper()
	pool := outboxtest.Postgres(t)
	_, err := pool.Exec(t.Context(), ledger.Tables)
	require.NoError(t, err)
	c, err := ledger.NewConsumer()
	require.NoError(t, err)
	return pool, c
}

// TestEveryFieldArrives: the row has JSON, the message has Protobuf or Avro, and the consumer gets every field and the facts of
// the event, once.
func TestEveryFieldArrives(t *testing.T) {
	t.Parallel()
	pool, consumer := prepared(t)
	id := uuid.New()
	messages := sent(t, pool, id)
	placed := outboxtest.RequireEnqueued(t, pool, events.OrderPlacedTopic, func(events.OrderPlaced) bool { return true })
	require.Equal(t, "Zoë", placed.Customer, "the row has JSON")

	for destination, contentType := range map[string]string{"orders": "application/protobuf", "parcels": "application/avro"} {
		m := messages[destination]
		require.Equal(t, contentType, m.ContentType)
		require.False(t, json.Valid(m.Body))
		require.Equal(t, "/shop", m.Attributes["source"])
		require.Equal(t, id.String(), m.Attributes["partitionkey"])
		for _, want := range []inbox.Outcome{inbox.Applied, inbox.Duplicate} {
			outcome, err := consumer.Consume(t.Context(), pool, consume.Message(m))
			require.NoError(t, err)
			require.Equal(t, want, outcome)
		}
	}
	var customer, tracking string
	var cents int64
	var placedAt, shippedAt time.Time
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT customer, total_cents, placed_at, tracking, shipped_at FROM ledger.orders WHERE order_id = $1", id).
		Scan(&customer, &cents, &placedAt, &tracking, &shippedAt))
	require.Equal(t, "Zoë", customer)
	require.EqualValues(t, 1<<53+1, cents)
	require.Equal(t, "T-"+id.String()[:8], tracking)
	require.True(t, placed.PlacedAt.Equal(placedAt))
	require.True(t, placed.PlacedAt.Equal(shippedAt))
}

// TestJSONIsStillRead: messages that were published before the shop changed the format are read too.
func TestJSONIsStillRead(t *testing.T) {
	t.Parallel()
	pool, consumer := prepared(t)
	body, err := json.Marshal(events.OrderPlaced{OrderID: uuid.New(), Customer: "Zoë", Lines: []events.Line{}, PlacedAt: time.Now()})
	require.NoError(t, err)
	m, err := publish.JSON()(publish.Outgoing{
		Event: outbox.Event{ID: uuid.New(), Namespace: "orders", Topic: "order_placed", Version: 1}, Payload: body,
	})
	require.NoError(t, err)
	_, err = consumer.Consume(t.Context(), pool, consume.Message(m))
	require.NoError(t, err)
}

// TestUnreadableBodies: bytes that are neither Protobuf nor Avro, and an order without an id, are permanently refused, and
// change nothing.
func TestUnreadableBodies(t *testing.T) {
	t.Parallel()
	pool, consumer := prepared(t)
	for destination, m := range sent(t, pool, uuid.New()) {
		for _, body := range [][]byte{{0xff, 0xff, 0xff}, {}, m.Body[:len(m.Body)/2]} {
			m.Body = body
			_, err := consumer.Consume(t.Context(), pool, consume.Message(m))
			require.ErrorIs(t, err, consume.ErrInvalidPayload, "%s: %x", destination, body)
			require.True(t, consume.IsPermanent(err))
		}
	}
	var n int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM ledger.orders").Scan(&n))
	require.Zero(t, n)
}

// TestPayloadThatTheEncoderCannotRead: such an event stays, with its reason, and is not lost.
func TestPayloadThatTheEncoderCannotRead(t *testing.T) {
	t.Parallel()
	pool, _ := prepared(t)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `SELECT outbox.enqueue(namespace => 'orders', topic => 'order_placed', payload => '{"order_id": 7}')`)
		return err
	}))
	d, err := shop.NewDispatcher(pool, func(context.Context, string, publish.Message) error { panic("sent") }, queue.Config{})
	require.NoError(t, err)
	report := outboxtest.Drain(t, d)
	require.Equal(t, 1, report.Retried)
	var reason string
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT last_error FROM outbox.event_status").Scan(&reason))
	require.Contains(t, reason, "encode order_placed: ")
}
