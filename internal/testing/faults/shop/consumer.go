package shop

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/kafka"
	"github.com/outboxgen/outboxgen/consume/nats"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/consume/webhook"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/faults/check"
	"github.com/outboxgen/outboxgen/internal/testing/faults/orders2/wire"
)

// consumer is another service, which takes what one of the brokers has. Its effects are in its own database.
type consumer struct {
	name    string
	journal *Journal
	calm    bool
}

func (c consumer) apply(ctx context.Context, tx pgx.Tx, g *got) error {
	c.journal.call(c.name, g, check.Start)
	if _, err := tx.Exec(ctx, insertEffect, c.name, g.id, g.topic, g.item, g.n); err != nil {
		return fmt.Errorf("write effect: %w", err)
	}
	if g.mood == flaky && !c.calm && rand.IntN(3) == 0 {
		return errFlaky
	}
	return nil
}

func (c consumer) ConsumeStockMoved(ctx context.Context, tx pgx.Tx, d consume.Delivery[wire.StockMoved]) error {
	return c.apply(ctx, tx, consumed(&d.Event, d.Payload.Item, d.Payload.N, d.Payload.Mood))
}

func (c consumer) ConsumeParcelSent(ctx context.Context, tx pgx.Tx, d consume.Delivery[wire.ParcelSent]) error {
	return c.apply(ctx, tx, consumed(&d.Event, d.Payload.Item, d.Payload.N, d.Payload.Mood))
}

func (c consumer) ConsumeInvoiceSent(ctx context.Context, tx pgx.Tx, d consume.Delivery[wire.InvoiceSent]) error {
	return c.apply(ctx, tx, consumed(&d.Event, d.Payload.Item, d.Payload.N, d.Payload.Mood))
}

func (c consumer) generated() (*consume.Consumer, error) {
	ib, err := inbox.New(inbox.Config{Group: c.name})
	if err != nil {
		return nil, err
	}
	return wire.NewShopConsumer(ib, c)
}

// consume takes what comes by Kafka, NATS and webhooks, until ctx ends.
func (o *Orders) consume(ctx context.Context, j *Journal) error {
	pool, err := open(ctx, o.Inbox, 12)
	if err != nil {
		return err
	}
	defer pool.Close()
	var all [3]*consume.Consumer
	for i, name := range []string{"kafka", "nats", "webhook"} {
		if all[i], err = (consumer{name, j, o.Calm}).generated(); err != nil {
			return err
		}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	errs := make([]error, len(all))
	for i, run := range []func(context.Context, *pgxpool.Pool, *consume.Consumer) error{o.takeKafka, o.takeNATS, o.takeWebhooks} {
		running.Go(func() {
			defer stop()
			errs[i] = run(ctx, pool, all[i])
		})
	}
	ready()
	running.Wait()
	return errors.Join(errs...)
}

func receiving() receive.Config {
	return receive.Config{
		BaseDelay: 50 * time.Millisecond, MaxDelay: time.Second, MaxAttempts: 200, ShutdownTimeout: shutdownTimeout,
	}
}

func (o *Orders) takeKafka(ctx context.Context, pool *pgxpool.Pool, c *consume.Consumer) error {
	return kafka.Run(ctx, pool, c, kafka.Config{
		Brokers: o.Kafka, Topics: []string{KafkaTopic}, Receive: receiving(),
		Options: []kgo.Opt{
			kgo.FetchMaxWait(500 * time.Millisecond), kgo.HeartbeatInterval(500 * time.Millisecond), kgo.SessionTimeout(6 * time.Second),
			kgo.RebalanceTimeout(6 * time.Second), kgo.MetadataMinAge(250 * time.Millisecond),
		},
	})
}

func (o *Orders) takeNATS(ctx context.Context, pool *pgxpool.Pool, c *consume.Consumer) error {
	return nats.Run(ctx, pool, c, nats.Config{URL: o.NATS, Stream: NATSStream, AckWait: 4 * time.Second, Receive: receiving()})
}

func (o *Orders) takeWebhooks(ctx context.Context, pool *pgxpool.Pool, c *consume.Consumer) error {
	h, err := webhook.Handler(webhook.Config{
		DB: pool, Consumer: c, Secrets: []string{Secret},
		Tolerance: time.Hour, // of workers whose clocks are wrong
	})
	if err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return err
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	context.AfterFunc(ctx, func() {
		ending, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		_ = s.Shutdown(ending) // what still runs then is cut
	})
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
