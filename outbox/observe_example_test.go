package outbox_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// A middleware gives each call of a handler five seconds, and an observer counts what becomes of events.
func ExampleObserver() {
	var delivered atomic.Int64
	cfg := queue.Config{
		Middleware: []outbox.Middleware{func(ctx context.Context, e outbox.Event, next func(context.Context) error) error {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			return next(ctx)
		}},
		Observer: &outbox.Observer{Settled: func(r outbox.Runner, e outbox.Event, s outbox.Settlement) {
			if s == outbox.SettledDelivered {
				delivered.Add(1) // many goroutines call this
			}
		}},
	}
	fmt.Println(len(cfg.Middleware))
	// Output: 1
}
