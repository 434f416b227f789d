package main

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"github.com/outboxgen/outboxgen/bench/events"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/publish"
)

// relayBroker is a broker for one run, with one destination that has nothing yet.
type relayBroker struct {
	destination string
	// ours makes the publisher, and hand a loop by hand that relays the log. Both are measured.
	ours func() (p publish.Publisher, closes func(), err error)
	hand func(ctx context.Context, db *database) error
	// arrived returns how many messages the destination has.
	arrived func(ctx context.Context) (int, error)
	stop    func() error
}

// relayBeside measures how fast a log of n events reaches a broker, next to a loop by hand. A broker that cannot be started
// is reported as not measured.
func relayBeside(name, title, about string, n int, start func(ctx context.Context) (*relayBroker, error)) workload {
	return workload{
		name: name, title: fmt.Sprintf("log of %d to %s", n, title), unit: "events/s",
		about: fmt.Sprintf("As to Kafka, with one of %d keys for each event. By hand: a loop that reads 1,000 events of the log, sends them and updates "+
			"its position, while it reads the next. It sends the same messages. ", relayKeys) + about,
		contenders: []contender{
			{"by hand", relayToBroker(n, start, func(ctx context.Context, db *database, b *relayBroker) (time.Duration, error) {
				started := time.Now()
				err := b.hand(ctx, db)
				return time.Since(started), err
			})},
			{"listener, as it comes", relayToBroker(n, start, relayWith(n, listener.Config{}))},
			{"listener, batches of 1,000", relayToBroker(n, start, relayWith(n, listener.Config{BatchSize: 1000}))},
		},
		targets: []target{{of: "listener, as it comes", to: "by hand", atLeast: 0.95}},
	}
}

// relayToBroker relays n events to a broker, and returns their rate. relay returns how long it took.
func relayToBroker(
	n int, start func(ctx context.Context) (*relayBroker, error),
	relay func(ctx context.Context, db *database, b *relayBroker) (time.Duration, error),
) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (rate float64, err error) {
		b, err := start(ctx)
		if err != nil {
			return 0, err
		}
		defer func() {
			if e := b.stop(); err == nil {
				err = e
			}
		}()
		if err := fillForHand(ctx, db, n); err != nil {
			return 0, err
		}
		runtime.GC() // not of what was prepared
		took, err := relay(ctx, db, b)
		if err != nil {
			return 0, err
		}
		got, err := b.arrived(ctx)
		if err != nil {
			return 0, err
		}
		if got != n {
			return 0, fmt.Errorf("%d messages have arrived, want %d", got, n)
		}
		return float64(n) / took.Seconds(), nil
	}
}

// relayWith relays with a listener.
func relayWith(n int, cfg listener.Config) func(context.Context, *database, *relayBroker) (time.Duration, error) {
	return func(ctx context.Context, db *database, b *relayBroker) (time.Duration, error) {
		p, closes, err := b.ours()
		if err != nil {
			return 0, err
		}
		defer closes()
		return relayListening(ctx, db, n, cfg, p, b.destination)
	}
}

// relayListening relays n events with a listener and p.
func relayListening(
	ctx context.Context, db *database, n int, cfg listener.Config, p publish.Publisher, destination string,
) (time.Duration, error) {
	t := newTally(n)
	cfg.PruneInterval, cfg.Logger = -1, quiet
	cfg.Publishers = map[string]publish.Publisher{"broker": &countedPublisher{Publisher: p, t: t}}
	l, err := listener.New(db.pool, listener.Spec{Schema: "outbox", Name: "relay"}, cfg,
		listener.Publish(events.OrderMovedTopic, publish.Publication{Broker: "broker", Destination: destination}))
	if err != nil {
		return 0, err
	}
	return runDispatcher(ctx, t, l.Run)
}

// handHeaders are the attributes of an event, the same as the publishers send.
func handHeaders(e *handEvent, set func(name, value string)) {
	set("dataversion", strconv.Itoa(int(e.version)))
	set("specversion", "1.0")
	set("subject", e.key)
	set("id", e.id.String())
	set("source", "/bench_log")
	set("type", "bench_log."+e.topic)
	set("time", e.created.Format(time.RFC3339Nano))
	set("partitionkey", e.key)
}
