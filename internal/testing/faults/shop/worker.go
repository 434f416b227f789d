package shop

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/testing/faults/check"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/kafka"
	"github.com/outboxgen/outboxgen/publish/nats"
	"github.com/outboxgen/outboxgen/publish/webhook"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/worker"
)

// runner is a dispatcher or a listener.
type runner = worker.Runner

// part makes one of the machines of a worker.
type part struct {
	name string
	make func(*pgxpool.Pool, *work) (runner, error)
}

// edition is what a build of the shop has generated code for.
type edition struct {
	enqueue    func(context.Context, outbox.Tx, string, []written, ...outbox.EnqueueOption) ([]outbox.Receipt, error)
	dispatcher func(*pgxpool.Pool, *work) (runner, error)
	listeners  []part
}

func (o *Orders) edition() *edition {
	if o.Edition == 1 {
		return &edition1
	}
	return &edition2
}

// work is a worker process: it delivers all topics of the shop.
type work struct {
	journal    *Journal
	publishers map[string]publish.Publisher
	lease      time.Duration
}

func (w *work) queue() queue.Config {
	return queue.Config{
		LeaseDuration: w.lease, Concurrency: 8, BatchSize: 100, ShutdownTimeout: shutdownTimeout,
		PruneInterval: time.Minute,
	}
}

func (w *work) listener() listener.Config {
	return listener.Config{LeaseDuration: w.lease, ShutdownTimeout: shutdownTimeout, PruneInterval: time.Minute}
}

func (w *work) relay() listener.Config {
	cfg := w.listener()
	cfg.Publishers = w.publishers
	return cfg
}

// work runs a worker until ctx ends.
func (o *Orders) work(ctx context.Context, j *Journal, told <-chan string) error {
	pool, err := open(ctx, o.Database, 16)
	if err != nil {
		return err
	}
	defer pool.Close()
	toKafka, err := kafka.New(kafka.Config{Brokers: o.Kafka, Timeout: 3 * time.Second})
	if err != nil {
		return err
	}
	defer toKafka.Close()
	toNATS, err := nats.New(nats.Config{URL: o.NATS, Timeout: 2 * time.Second})
	if err != nil {
		return err
	}
	defer toNATS.Close()
	toWebhook, err := webhook.New(webhook.Config{
		Endpoints: map[string]webhook.Endpoint{"billing": {URL: o.Webhook, Secrets: []string{Secret}}}, Timeout: 2 * time.Second,
		AllowedNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	})
	if err != nil {
		return err
	}
	defer toWebhook.Close()
	w := &work{j, map[string]publish.Publisher{"kafka": toKafka, "nats": toNATS, "webhook": toWebhook}, Lease}
	if o.Calm {
		w.lease = CalmLease
	}
	e := o.edition()
	d, err := e.dispatcher(pool, w)
	if err != nil {
		return err
	}
	parts := []worker.Part{{Name: Namespace, Runner: d}}
	for _, p := range e.listeners {
		l, err := p.make(pool, w)
		if err != nil {
			return err
		}
		parts = append(parts, worker.Part{Name: p.name, Runner: l})
	}
	all, err := worker.New(parts...)
	if err != nil {
		return err
	}
	go func() {
		for range told {
			eat()
		}
	}()
	go j.watch()
	ready()
	return all.Run(ctx)
}

// apply writes an effect with the transaction of a listener's cursor.
func (w *work) apply(ctx context.Context, tx pgx.Tx, handler string, g *got) error {
	w.journal.call(handler, g, check.Start)
	if _, err := tx.Exec(ctx, insertEffect, handler, g.id, g.topic, g.item, g.n); err != nil {
		return fmt.Errorf("write effect: %w", err)
	}
	err := misbehave(ctx, g)
	if errors.Is(err, errRefused) {
		return outbox.Permanent(err)
	}
	return err
}

// eat takes memory until there is none, and the process ends with the error of the Go runtime.
func eat() {
	var used syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_AS, &used); err != nil {
		os.Exit(exitBroken)
	}
	used.Cur = 1 << 20 // less than the process has, so that nothing can be added
	if err := syscall.Setrlimit(syscall.RLIMIT_AS, &used); err != nil {
		os.Exit(exitBroken)
	}
	var kept [][]byte
	for {
		kept = append(kept, make([]byte, 1<<20))
		for i := 0; i < 1<<20; i += 4096 {
			kept[len(kept)-1][i] = 1
		}
	}
}

// payloads makes the payloads of a topic.
func payloads[P any](es []written, one func(written) P) []P {
	ps := make([]P, len(es))
	for i, e := range es {
		ps[i] = one(e)
	}
	return ps
}
