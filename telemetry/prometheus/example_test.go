package prometheus_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/telemetry/prometheus"
)

// A service registers a Collector and gives its observer to its dispatchers and to its root context.
func Example() {
	serve := func(ctx context.Context, pool *pgxpool.Pool) error {
		collector, err := prometheus.New(prometheus.Config{Pool: pool})
		if err != nil {
			return err
		}
		prom.MustRegister(collector)
		go func() { // before pool is closed, wait for it
			if err := collector.Run(ctx); err != nil {
				log.Print(err)
			}
		}()
		ctx = outbox.ContextWithObserver(ctx, collector.Observer())
		h := handler(func(context.Context, outbox.Delivery[order]) error { return nil })
		d, err := queue.NewDispatcher(pool, queue.Config{Observer: collector.Observer()}, queue.Handle(placed, h, h.Handle))
		if err != nil {
			return err
		}
		return d.Run(ctx)
	}
	_ = serve
}
