package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/orders/events"
	"github.com/outboxgen/outboxgen/examples/orders/order"
	"github.com/outboxgen/outboxgen/examples/orders/shipping"
	"github.com/outboxgen/outboxgen/queue"
)

const (
	clients       = 8
	repeatEvery   = 5
	printInterval = 100 * time.Millisecond
)

// demo is one run for a new shop, so that it may be repeated in one database.
type demo struct {
	pool *pgxpool.Pool
	shop uuid.UUID
	out  io.Writer
}

func (d demo) run(ctx context.Context, orders int) error {
	fmt.Fprintf(d.out, "the dispatcher is stopped, %d clients order\n", clients)
	created, repeated, err := d.takeOrders(ctx, orders)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "%d requests: %d orders created, %d were repeats\n", created+repeated, created, repeated)
	if err := d.drainBacklog(ctx); err != nil {
		return err
	}
	return d.account(ctx)
}

// takeOrders sends n requests. It sends every fifth one twice, like a client whose connection broke; both may arrive
// concurrently. It ends at the first error.
func (d demo) takeOrders(ctx context.Context, n int) (created, repeated int64, err error) {
	var requests []order.Request
	for i := range n {
		r := request(d.shop, i)
		requests = append(requests, r)
		if i%repeatEvery == 0 {
			requests = append(requests, r)
		}
	}

	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var next, isNew, isRepeated atomic.Int64
	var client sync.WaitGroup
	for range clients {
		client.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(requests) {
					return
				}
				switch created, err := d.create(ctx, requests[i]); {
				case err != nil:
					fail(err)
				case created:
					isNew.Add(1)
				default:
					isRepeated.Add(1)
				}
			}
		})
	}
	client.Wait()
	return isNew.Load(), isRepeated.Load(), context.Cause(ctx)
}

// create does what a request handler of the service does: one transaction for the order and its event.
func (d demo) create(ctx context.Context, r order.Request) (created bool, err error) {
	_, created, err = order.Create(ctx, d.pool, r)
	return created, err
}

func request(shop uuid.UUID, i int) order.Request {
	return order.Request{
		ShopID:    shop,
		ClientKey: fmt.Sprintf("cart-%05d", i),
		Lines:     []order.Line{{SKU: "mug", Quantity: int32(1 + i%4), PriceCents: 950}, {SKU: "tea", Quantity: 1, PriceCents: 480}},
		ShipTo:    fmt.Sprintf("%d Harbour Street", 1+i),
	}
}

// drainBacklog runs a dispatcher until no event is left, and prints the size of the backlog meanwhile.
func (d demo) drainBacklog(ctx context.Context) error {
	handler := &events.OrdersHandler{Shipping: shipping.NewDesk(d.pool)}
	dispatcher, err := events.NewOrdersDispatcher(d.pool, handler, queue.Config{})
	if err != nil {
		return err
	}
	before, err := d.backlog(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "backlog %5d   the dispatcher starts\n", before)

	start := time.Now()
	dispatching, stop := context.WithCancel(ctx)
	stopped := make(chan struct{})
	var runErr error
	go func() {
		defer close(stopped)
		runErr = dispatcher.Run(dispatching)
	}()
	watchErr := d.watch(ctx, stopped)
	took := time.Since(start)
	stop()
	<-stopped
	if err := errors.Join(watchErr, runErr); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "drained %d events in %s\n", before, took.Round(time.Millisecond))
	return nil
}

// watch prints the backlog until it is empty, ctx ends or the dispatcher stops.
func (d demo) watch(ctx context.Context, stopped <-chan struct{}) error {
	tick := time.NewTicker(printInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-stopped:
			return errors.New("the dispatcher stopped early")
		}
		left, err := d.backlog(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintf(d.out, "backlog %5d\n", left)
		if left == 0 {
			return nil
		}
	}
}

// backlog returns how many events of the shop are not final.
func (d demo) backlog(ctx context.Context) (n int, err error) {
	err = d.pool.QueryRow(ctx, `
		SELECT count(*)
		FROM outbox.queue
		WHERE namespace = $1 AND tenant_id = $2`,
		events.OrderCreatedTopic.Untyped().Spec().Namespace, d.shop).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count backlog: %w", err)
	}
	return n, nil
}

// account fails unless each order has its event and its shipment.
func (d demo) account(ctx context.Context) error {
	var orders, delivered, shipments int
	err := d.pool.QueryRow(ctx, `
		SELECT
			(SELECT count(*) FROM shop.orders WHERE shop_id = $1),
			(SELECT count(*) FROM outbox.event_status WHERE tenant_id = $1 AND status = 'delivered'),
			(SELECT count(*) FROM shop.shipments WHERE shop_id = $1)`,
		d.shop).Scan(&orders, &delivered, &shipments)
	if err != nil {
		return fmt.Errorf("read account: %w", err)
	}
	fmt.Fprintf(d.out, "orders %d, events delivered %d, shipments %d\n", orders, delivered, shipments)
	if orders != delivered || orders != shipments {
		return errors.New("orders, events and shipments differ")
	}
	return nil
}
