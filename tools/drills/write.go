package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/outbox"
)

// Order is the payload of both topics. Version is that of its item, which each order raises.
type Order struct {
	ID      uuid.UUID `json:"id"`
	Item    int       `json:"item"`
	Version int64     `json:"version"`
}

// Each order is an event of a queue topic, for the dispatcher, and one of a log topic, for the listener.
var (
	placed = outbox.NewTopic[Order](outbox.TopicSpec{Namespace: "shop", Name: "order_placed", Strict: true, Keys: keys})
	shown  = outbox.NewTopic[Order](outbox.TopicSpec{Namespace: "shop", Name: "order_shown", Strict: true, Log: true, Keys: keys})
)

func keys(v any) outbox.Keys {
	return outbox.Keys{Partition: eventkey.NewKey(eventkey.UUIDPart("id", v.(*Order).ID))}
}

// write places orders until ctx ends, or until there are enough. A writer whose database does not answer tries again with
// the next order, as users do.
func write(ctx context.Context, o options) error {
	pool, err := connect(ctx, o.db, o.writers)
	if err != nil {
		return err
	}
	defer pool.Close()
	if o.open {
		if err := open(ctx, pool, o.writers); err != nil {
			return err
		}
	}
	acknowledged, err := openRecord(o.dir, "acknowledged")
	if err != nil {
		return err
	}
	unknown, err := openRecord(o.dir, "unknown")
	if err != nil {
		return err
	}
	var left, next atomic.Int64
	left.Store(int64(o.orders))
	var writers sync.WaitGroup
	var mistakes atomic.Pointer[error]
	for range o.writers {
		writers.Go(func() {
			wait(ctx, rand.N(o.pause+1)) // not all at once
			for ctx.Err() == nil {
				if o.orders > 0 && left.Add(-1) < 0 {
					return
				}
				id := uuid.Must(uuid.NewV7())
				err := place(context.WithoutCancel(ctx), pool, id, int(next.Add(1)%items))
				switch {
				case err == nil:
					err = acknowledged.add(id.String())
				case errors.Is(err, errCommit):
					err = unknown.add(id.String())
				default: // nothing was written: another order takes its place
					left.Add(1)
					err = nil
				}
				if err != nil {
					mistakes.Store(&err)
					return
				}
				wait(ctx, o.pause)
			}
		})
	}
	writers.Wait()
	if o.open {
		<-ctx.Done()
	}
	if err := mistakes.Load(); err != nil {
		return *err
	}
	return nil
}

// open makes a pool open all its connections.
func open(ctx context.Context, pool *pgxpool.Pool, n int) error {
	for range n {
		c, err := pool.Acquire(ctx)
		if err != nil {
			return fmt.Errorf("open %d connections: %w", n, err)
		}
		defer c.Release()
	}
	return nil
}

// items is how many rows the table items has.
const items = 50

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

var errCommit = errors.New("the commit failed")

// place writes an order of an item and its two events in one transaction.
func place(ctx context.Context, pool *pgxpool.Pool, id uuid.UUID, item int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if err := fill(ctx, tx, Order{ID: id, Item: item}); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("%w: %w", errCommit, err)
	}
	return nil
}

func fill(ctx context.Context, tx pgx.Tx, o Order) error {
	if _, err := tx.Exec(ctx, "INSERT INTO orders (id) VALUES ($1)", o.ID); err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, "UPDATE items SET version = version + 1, latest = $2 WHERE id = $1 RETURNING version", o.Item, o.ID).
		Scan(&o.Version); err != nil {
		return err
	}
	if _, err := placed.Enqueue(ctx, tx, o); err != nil {
		return err
	}
	_, err := shown.Enqueue(ctx, tx, o)
	return err
}
