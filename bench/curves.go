package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/bench/events"
	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// curves returns how far one database carries: what becomes of a rate as one number grows, and all else stays. Drains have n
// events, or as many as there are tenants or keys if that is more.
func curves(n int) []workload {
	return []workload{
		curveOf("producers", "business transactions of more producers", "transactions/s", "producers",
			"One row changed and one event enqueued in a transaction, on as many connections as there are producers.",
			line{"Enqueue", []int{1, 2, 4, 8, 16, 32, 64}, ofTransactions("Enqueue")},
			line{"hand-written insert", []int{1, 2, 4, 8, 16, 32, 64}, ofTransactions("hand-written insert")},
		),
		curveOf("workers", "a drain by more worker processes", "events/s", "processes",
			"From the moment when all processes may begin until the queue is empty. Each process has ten handlers at a time.",
			line{"handlers that do nothing", []int{1, 2, 4, 8}, func(x int) measured { return drainProcesses(x, n, 0) }},
			line{"handlers of 5 ms", []int{1, 2, 4, 8}, func(x int) measured {
				return drainProcesses(x, n/10, 5*time.Millisecond)
			}},
		),
		curveOf("payload", "larger payloads", "MB/s", "bytes",
			"Payloads of random letters, which do not compress. EnqueueMany: 100 events a call.",
			line{"EnqueueMany", sizes, func(x int) measured { return megabytes(x, enqueueSized(x, sized(n, x))) }},
			line{"dispatcher", sizes, func(x int) measured { return megabytes(x, drainSized(x, sized(n, x))) }},
			line{"listener", sizes, func(x int) measured { return megabytes(x, listenSized(x, sized(n, x))) }},
		),
		curveOf("topics", "more topics in a namespace", "events/s", "topics",
			"A drain of a namespace by one dispatcher, which handles all of its topics. Each topic has as many events as the others.",
			line{"dispatcher", []int{1, 10, 100, 1000}, func(x int) measured { return drainTopics(x, n) }},
		),
		curveOf("tenants", "more tenants with fairness", "events/s", "tenants",
			"A drain of a topic with `fairness: tenant`. Each tenant has as many events as the others.",
			line{"dispatcher", []int{1, 10, 100, 1000, 10_000, 100_000}, func(x int) measured {
				return drainTenants(x, max(n, x))
			}},
		),
		curveOf("keys", "more partition keys of a log topic", "events/s", "keys",
			"One listener. Handlers of 1 ms: 50 at a time. Events of one key are handled one after the other.",
			line{"handlers that do nothing", []int{1, 10, 100, 1000, 10_000, 100_000, 1_000_000}, func(x int) measured {
				return listenKeys(x, max(n, x), 0, listener.Spec{})
			}},
			line{"handlers of 1 ms", []int{1, 10, 100, 1000, 10_000}, func(x int) measured {
				return listenKeys(x, min(2000*x, n/5), time.Millisecond, listener.Spec{Concurrency: 50})
			}},
		),
		curveOf("shards", "more shards of a listener", "events/s", "shards",
			"One process, which holds all shards, and 10,000 keys. Handlers of 1 ms: four of a shard at a time.",
			line{"handlers that do nothing", []int{1, 2, 4, 8, 16, 32}, func(x int) measured {
				return listenKeys(10_000, n, 0, listener.Spec{Shards: x})
			}},
			line{"handlers of 1 ms", []int{1, 2, 4, 8, 16, 32}, func(x int) measured {
				return listenKeys(10_000, n/5, time.Millisecond, listener.Spec{Shards: x, Concurrency: 4})
			}},
		),
	}
}

// ofTransactions returns a contender of the workload of as many producers.
func ofTransactions(name string) func(producers int) measured {
	return func(producers int) measured {
		for _, c := range transactions(producers, max(6000/producers, 100)).contenders {
			if c.name == name {
				return c.run
			}
		}
		panic("no contender " + name)
	}
}

// workOf returns handlers that take some time.
func workOf(took time.Duration) func(context.Context) {
	if took == 0 {
		return noWork
	}
	return func(ctx context.Context) { pause(ctx, took) }
}

// sizes are those of payloads, in bytes.
var sizes = []int{100, 1000, 4000, 16_000, 64_000}

// sized returns how many events of a size are handled: at most n, of 200 MB in all.
func sized(n, size int) int { return min(n/2, 200_000_000/size) }

// megabytes turns a rate of events into one of their bytes.
func megabytes(size int, rate measured) measured {
	return func(ctx context.Context, db *database) (float64, error) {
		perSecond, err := rate(ctx, db)
		return perSecond * float64(size) / 1e6, err
	}
}

// padded is the payload of curves, whose note has any size.
type padded = events.OrderPaid

func paddedTo(size int) func(seq int) padded {
	const letters = "abcdefghijklmnopqrstuvwxyz"
	random := rand.New(rand.NewPCG(1, 0))
	const rest = 70 // of the JSON, without the note
	return func(seq int) padded {
		text := make([]byte, max(size-rest, 1))
		for i := range text {
			text[i] = letters[random.IntN(len(letters))]
		}
		return padded{OrderID: uuid.New(), Seq: int64(seq), Note: string(text)}
	}
}

// topicOf returns a topic of the namespace "curve".
func topicOf(name string, change func(*outbox.TopicSpec)) outbox.Topic[padded] {
	spec := outbox.TopicSpec{Namespace: "curve", Name: name}
	if change != nil {
		change(&spec)
	}
	return outbox.NewTopic[padded](spec)
}

func asLog(spec *outbox.TopicSpec) { spec.Log = true }

func enqueueSized(size, n int) measured {
	return func(ctx context.Context, db *database) (float64, error) {
		topic, payload := topicOf("sized", nil), paddedTo(size)
		const perCall = 100
		calls := make([][]padded, n/perCall)
		for i := range calls {
			for k := range perCall {
				calls[i] = append(calls[i], payload(i*perCall+k))
			}
		}
		started := time.Now()
		for _, ps := range calls {
			if err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
				_, err := topic.EnqueueMany(ctx, tx, ps)
				return err
			}); err != nil {
				return 0, err
			}
		}
		n := len(calls) * perCall
		return float64(n) / time.Since(started).Seconds(), db.count(ctx, n, "events", enqueued)
	}
}

func drainSized(size, n int) measured {
	return func(ctx context.Context, db *database) (float64, error) {
		topic := topicOf("sized", nil)
		return drainTopicsOf(ctx, db, n, []outbox.Topic[padded]{topic}, paddedTo(size))
	}
}

func listenSized(size, n int) measured {
	return func(ctx context.Context, db *database) (float64, error) {
		topic := topicOf("sized", asLog)
		if err := fillQueue(ctx, db, n, paddedTo(size), topic.EnqueueMany); err != nil {
			return 0, err
		}
		return listenOn(ctx, db, n, topic, listener.Spec{}, noWork)
	}
}

func drainTopics(topics, n int) measured {
	return func(ctx context.Context, db *database) (float64, error) {
		all := make([]outbox.Topic[padded], topics)
		for i := range all {
			all[i] = topicOf(fmt.Sprintf("topic_%d", i), nil)
		}
		return drainTopicsOf(ctx, db, n, all, order)
	}
}

func drainTenants(tenants, n int) measured {
	return func(ctx context.Context, db *database) (float64, error) {
		ids := make([]uuid.UUID, tenants)
		for i := range ids {
			ids[i] = uuid.New()
		}
		topic := topicOf("fair", func(spec *outbox.TopicSpec) {
			spec.Fairness = outbox.FairnessTenant
			spec.Keys = func(p any) outbox.Keys {
				return outbox.Keys{TenantID: outbox.Tenant(ids[p.(*padded).Seq%int64(tenants)])}
			}
		})
		return drainTopicsOf(ctx, db, n, []outbox.Topic[padded]{topic}, order)
	}
}

// drainTopicsOf measures one dispatcher of some topics, which share n events equally.
func drainTopicsOf(
	ctx context.Context, db *database, n int, topics []outbox.Topic[padded], payload func(seq int) padded,
) (float64, error) {
	n -= n % len(topics)
	each := n / len(topics)
	for i := range topics {
		if err := enqueueAll(ctx, db, each, func(seq int) padded { return payload(i*each + seq) }, topics[i].EnqueueMany); err != nil {
			return 0, err
		}
	}
	if err := errors.Join(db.vacuum(ctx), db.settle(ctx)); err != nil {
		return 0, err
	}
	t := newTally(n)
	handlers := make([]queue.Handler, len(topics))
	for i := range topics {
		handlers[i] = queue.Handle(topics[i], t, func(_ context.Context, d outbox.Delivery[padded]) error {
			t.add(d.Payload.Seq)
			return nil
		})
	}
	d, err := queue.NewDispatcher(db.pool, queue.Config{PruneInterval: -1, Logger: quiet}, handlers...)
	if err != nil {
		return 0, err
	}
	took, err := runDispatcher(ctx, t, d.Run)
	if err != nil {
		return 0, err
	}
	return float64(n) / took.Seconds(), db.count(ctx, n, "delivered", delivered)
}

func listenKeys(keys, n int, took time.Duration, spec listener.Spec) measured {
	return func(ctx context.Context, db *database) (float64, error) {
		topic := topicOf("keyed", func(s *outbox.TopicSpec) {
			s.Log = true
			s.Keys = func(p any) outbox.Keys {
				return outbox.Keys{Partition: eventkey.NewKey(eventkey.IntPart("seq", p.(*padded).Seq%int64(keys)))}
			}
		})
		if err := fillQueue(ctx, db, n, order, topic.EnqueueMany); err != nil {
			return 0, err
		}
		return listenOn(ctx, db, n, topic, spec, workOf(took))
	}
}

// listenOn measures one listener of a log with n events.
func listenOn(
	ctx context.Context, db *database, n int, topic outbox.Topic[padded], spec listener.Spec, work func(context.Context),
) (float64, error) {
	pool, err := db.open(ctx, int32(16+2*spec.Shards))
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	t := newTally(n)
	spec.Name = "curve"
	l, err := listener.New(pool, spec, listener.Config{PruneInterval: -1, Logger: quiet},
		listener.Handle(topic, t, func(ctx context.Context, d outbox.Delivery[padded]) error {
			work(ctx)
			t.add(d.Payload.Seq)
			return nil
		}))
	if err != nil {
		return 0, err
	}
	took, err := runDispatcher(ctx, t, l.Run)
	if err != nil {
		return 0, err
	}
	return float64(n) / took.Seconds(), nil
}
