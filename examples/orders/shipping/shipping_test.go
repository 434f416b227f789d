package shipping_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/orders/database"
	"github.com/outboxgen/outboxgen/examples/orders/events"
	"github.com/outboxgen/outboxgen/examples/orders/shipping"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
)

func TestEventDeliveredTwiceIsOneShipment(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	require.NoError(t, database.Migrate(t.Context(), pool))
	d := outbox.Delivery[events.OrderCreated]{Payload: events.OrderCreated{
		ShopID:    uuid.New(),
		OrderID:   uuid.New(),
		ClientKey: "cart-1",
		Lines:     []events.Line{{SKU: "mug", Quantity: 2}, {SKU: "tea", Quantity: 3}},
		ShipTo:    "1 Harbour Street",
		CreatedAt: time.Now(),
	}}
	h := &events.OrdersHandler{Shipping: shipping.NewDesk(pool)}
	for range 2 {
		require.NoError(t, h.HandleOrderCreated(t.Context(), d))
	}

	var shipments, pieces int
	require.NoError(t, pool.QueryRow(t.Context(),
		"SELECT count(*), sum(pieces) FROM shop.shipments WHERE order_id = $1", d.Payload.OrderID).Scan(&shipments, &pieces))
	require.Equal(t, 1, shipments)
	require.Equal(t, 5, pieces)
}
