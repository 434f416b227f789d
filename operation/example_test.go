package operation_test

import (
	"context"
	"fmt"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/operation"
	"github.com/outboxgen/outboxgen/outbox"
)

// OrderPlaced is the payload of a topic.
type OrderPlaced struct {
	OrderID string `json:"order_id"`
}

var orderPlaced = outbox.NewTopic[OrderPlaced](outbox.TopicSpec{Namespace: "shop", Name: "order_placed"})

// An operation commits only with one of its outcomes. Generated code wraps this function, so that a program without an
// outcome does not compile.
func ExampleRun() {
	ctx := context.Background()
	pool := pgtest.ExampleDatabase() // a service uses pgxpool.New
	place := func(do func(context.Context, *operation.Operation) (operation.Outcome, error)) {
		fmt.Println(operation.Run(ctx, pool, "place_order", do))
	}
	place(func(ctx context.Context, o *operation.Operation) (operation.Outcome, error) {
		// Change your rows with o.Tx() here.
		return o.Emit(ctx, "placed", nil, operation.Emission{Topic: orderPlaced.Untyped(), Payload: &OrderPlaced{OrderID: "17"}})
	})
	place(func(context.Context, *operation.Operation) (operation.Outcome, error) {
		return operation.Outcome{}, nil
	})
	// Output:
	// <nil>
	// operation place_order: no valid outcome: it returned a zero outcome and no error
}
