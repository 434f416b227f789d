package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/bench/events"
	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/outbox"
)

// findable is a topic like order_paid, whose events are about an order.
func findable(entity bool) outbox.Topic[events.OrderPaid] {
	return outbox.NewTopic[events.OrderPaid](outbox.TopicSpec{
		Namespace: "bench", Name: "order_paid", Version: 1,
		Keys: func(p any) outbox.Keys {
			o := p.(*events.OrderPaid)
			k := outbox.Keys{Dedupe: eventkey.NewKey(eventkey.UUIDPart("order_id", o.OrderID))}
			if entity {
				k.EntityType, k.EntityID = "order", eventkey.NewKey(eventkey.StringPart("seq", strconv.FormatInt(o.Seq/10, 10)))
			}
			return k
		},
	})
}

// found measures what it costs an enqueue that its event can be found by its entity and by its chain.
func found(size, calls int) workload {
	const nothing, without = "neither", "neither, without the indexes"
	rate := func(entity, caused bool, prepare string) func(context.Context, *database) (float64, error) {
		topic := findable(entity)
		return func(ctx context.Context, db *database) (float64, error) {
			if _, err := db.pool.Exec(ctx, prepare); err != nil {
				return 0, err
			}
			took, err := produce(ctx, 1, calls, func(ctx context.Context, _, call int) error {
				if caused {
					ctx = outbox.ContextWithCause(ctx, outbox.Event{ID: uuid.Must(uuid.NewV7())})
				}
				ps := make([]events.OrderPaid, size)
				for i := range ps {
					ps[i] = order(call*size + i)
				}
				return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
					_, err := topic.EnqueueMany(ctx, tx, ps)
					return err
				})
			})
			if err != nil {
				return 0, err
			}
			return float64(size*calls) / took.Seconds(), db.count(ctx, size*calls, "events", enqueued)
		}
	}
	return workload{
		name: fmt.Sprintf("found-%d", size), title: fmt.Sprintf("events that can be found, %d a call", size), unit: "events/s",
		about: "One producer, one call per transaction. An entity and a chain each cost an entry in an index, and a chain two headers of 36 bytes.",
		contenders: []contender{
			{without, rate(false, false, "DROP INDEX outbox.events_entity, outbox.events_correlation")},
			{nothing, rate(false, false, "")},
			{"with an entity", rate(true, false, "")},
			{"in a chain", rate(false, true, "")},
			{"both", rate(true, true, "")},
		},
		targets: []target{
			{of: nothing, to: without, atLeast: 0.97},
			{of: "with an entity", to: nothing, atLeast: 0.85},
			{of: "in a chain", to: nothing, atLeast: 0.75},
		},
	}
}
