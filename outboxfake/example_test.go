package outboxfake_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxfake"
)

// OrderPlaced is the payload of a topic.
type OrderPlaced struct {
	OrderID string `json:"order_id"`
}

var orderPlaced = outbox.NewTopic[OrderPlaced](outbox.TopicSpec{
	Namespace: "shop", Name: "order_placed",
	Keys: func(p any) outbox.Keys {
		return outbox.Keys{Dedupe: eventkey.NewKey(eventkey.StringPart("order_id", p.(*OrderPlaced).OrderID))}
	},
})

// A DB is in the place of the pool. Generated fakes, such as FakeMiniChat, embed one; without generated code, use it by
// itself.
func ExampleDB() {
	ctx := context.Background()
	var db outboxfake.DB
	place := func(id string, failure error) error { // the code under test
		return pgx.BeginFunc(ctx, &db, func(tx pgx.Tx) error {
			_, err := orderPlaced.Enqueue(ctx, tx, OrderPlaced{OrderID: id})
			return errors.Join(err, failure)
		})
	}
	fmt.Println(place("17", nil))
	fmt.Println(place("18", errors.New("sold out"))) // rolls back
	fmt.Println(place("", nil))
	fmt.Println(outboxfake.Payloads(&db, orderPlaced))
	// Output:
	// <nil>
	// sold out
	// enqueue shop/order_placed: render dedupe key: field order_id: empty key part
	// [{17}]
}
