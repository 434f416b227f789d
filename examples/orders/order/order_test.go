package order_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/orders/database"
	"github.com/outboxgen/outboxgen/examples/orders/order"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
)

func TestCreateTwiceIsOneOrderAndOneEvent(t *testing.T) {
	t.Parallel()
	pool := shopDatabase(t)
	r := request()

	first, created, err := order.Create(t.Context(), pool, r)
	require.NoError(t, err)
	require.True(t, created)
	require.EqualValues(t, 2380, first.TotalCents)

	second, created, err := order.Create(t.Context(), pool, r)
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, first, second)
	requireCounts(t, pool, 1, 1)
}

func TestCreateConcurrentlyIsOneOrderAndOneEvent(t *testing.T) {
	t.Parallel()
	pool := shopDatabase(t)
	r := request()

	type result struct {
		order   order.Order
		created bool
		err     error
	}
	results := make(chan result)
	const clients = 12
	for range clients {
		go func() {
			o, created, err := order.Create(t.Context(), pool, r)
			results <- result{o, created, err}
		}()
	}
	created, ids := 0, map[uuid.UUID]bool{}
	for range clients {
		got := <-results
		require.NoError(t, got.err)
		ids[got.order.ID] = true
		if got.created {
			created++
		}
	}
	require.Equal(t, 1, created)
	require.Len(t, ids, 1)
	requireCounts(t, pool, 1, 1)
}

func TestCreateAfterARivalRolledBack(t *testing.T) {
	t.Parallel()
	pool := shopDatabase(t)
	r := request()

	rival, err := pool.Begin(t.Context())
	require.NoError(t, err)
	lost, created, err := order.Create(t.Context(), rival, r)
	require.NoError(t, err)
	require.True(t, created)

	var kept order.Order
	done := make(chan error, 1)
	go func() {
		var err error
		kept, created, err = order.Create(t.Context(), pool, r)
		done <- err
	}()
	require.NoError(t, rival.Rollback(t.Context()))
	require.NoError(t, <-done)
	require.True(t, created)
	require.NotEqual(t, lost.ID, kept.ID)
	requireCounts(t, pool, 1, 1)
}

func TestCreateRefusesAReusedKey(t *testing.T) {
	t.Parallel()
	pool := shopDatabase(t)
	r := request()
	_, _, err := order.Create(t.Context(), pool, r)
	require.NoError(t, err)

	r.ShipTo = "2 Harbour Street"
	_, _, err = order.Create(t.Context(), pool, r)
	require.ErrorIs(t, err, order.ErrKeyReused)
	requireCounts(t, pool, 1, 1)
}

func TestCreateKeepsShopsApart(t *testing.T) {
	t.Parallel()
	pool := shopDatabase(t)
	r := request()
	for range 2 {
		r.ShopID = uuid.New()
		_, created, err := order.Create(t.Context(), pool, r)
		require.NoError(t, err)
		require.True(t, created)
	}
	requireCounts(t, pool, 2, 2)
}

func TestCreateInvalidLeavesNothing(t *testing.T) {
	t.Parallel()
	pool := shopDatabase(t)
	r := request()
	r.Lines[0].Quantity = 0
	_, _, err := order.Create(t.Context(), pool, r)
	require.ErrorIs(t, err, outbox.ErrPayloadInvalid)
	require.ErrorContains(t, err, "lines[0].quantity")
	requireCounts(t, pool, 0, 0)
}

// TestCreateRolledBackLeavesNothing lets the transaction fail after the order was created in it.
func TestCreateRolledBackLeavesNothing(t *testing.T) {
	t.Parallel()
	pool := shopDatabase(t)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, created, err := order.Create(t.Context(), tx, request())
	require.NoError(t, err)
	require.True(t, created)
	require.NoError(t, tx.Rollback(t.Context()))
	requireCounts(t, pool, 0, 0)
}

func shopDatabase(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := outboxtest.Postgres(t)
	require.NoError(t, database.Migrate(t.Context(), pool))
	return pool
}

func request() order.Request {
	return order.Request{
		ShopID:    uuid.New(),
		ClientKey: "cart 7/50%",
		Lines:     []order.Line{{SKU: "mug", Quantity: 2, PriceCents: 950}, {SKU: "tea", Quantity: 1, PriceCents: 480}},
		ShipTo:    "1 Harbour Street",
	}
}

func requireCounts(t *testing.T, pool *pgxpool.Pool, orders, events int) {
	t.Helper()
	var gotOrders, gotEvents int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM shop.orders), (SELECT count(*) FROM outbox.events)").
		Scan(&gotOrders, &gotEvents))
	require.Equal(t, orders, gotOrders, "orders")
	require.Equal(t, events, gotEvents, "events")
}
