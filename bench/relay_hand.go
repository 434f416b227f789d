package main

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/outboxgen/outboxgen/bench/events"
)

// handEvent is a row of the log as loops by hand read it.
type handEvent struct {
	id         uuid.UUID
	topic, key string
	payload    []byte
	created    time.Time
	version    int32
}

// handPart are messages and the position of the last of them.
type handPart[M any] struct {
	messages []M
	last     int64
}

// fillForHand fills the log, and makes the table with the position of a loop by hand.
func fillForHand(ctx context.Context, db *database, n int) error {
	if err := fillQueue(ctx, db, n, relayOrder, events.EnqueueOrderMovedMany); err != nil {
		return err
	}
	_, err := db.pool.Exec(ctx, "CREATE TABLE position AS SELECT 0::bigint AS seq")
	return err
}

// relayLoop sends the log in parts of 1,000, one after the other, and updates the position after each. It reads the next part
// while it sends one. send returns when all messages have arrived.
func relayLoop[M any](ctx context.Context, db *database, encode func(*handEvent) M, send func(context.Context, []M) error) error {
	both, ctx := errgroup.WithContext(ctx)
	parts := make(chan handPart[M])
	both.Go(func() error {
		defer close(parts)
		for last := int64(0); ; {
			part, err := readByHand(ctx, db, last, encode)
			if err != nil || len(part.messages) == 0 {
				return err
			}
			last = part.last
			select {
			case parts <- part:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	both.Go(func() error {
		for part := range parts {
			if err := send(ctx, part.messages); err != nil {
				return err
			}
			if _, err := db.pool.Exec(ctx, "UPDATE position SET seq = $1", part.last); err != nil {
				return err
			}
		}
		return nil
	})
	return both.Wait()
}

func readByHand[M any](ctx context.Context, db *database, after int64, encode func(*handEvent) M) (part handPart[M], err error) {
	rows, err := db.pool.Query(ctx, plainSelect, after)
	if err != nil {
		return part, err
	}
	part = handPart[M]{make([]M, 0, 1000), after}
	var e handEvent
	_, err = pgx.ForEachRow(rows, []any{&part.last, &e.id, &e.topic, &e.version, &e.key, &e.payload, &e.created}, func() error {
		part.messages = append(part.messages, encode(&e))
		return nil
	})
	return part, err
}
