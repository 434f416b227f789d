package nats_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/nats"
	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/campaign"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

var stepEnqueued = outbox.NewTopic[step](outbox.TopicSpec{
	Namespace: "users", Name: "step_taken", Version: 1, Log: true,
	Keys: func(v any) outbox.Keys {
		return outbox.Keys{Partition: eventkey.NewKey(eventkey.StringPart("key", v.(*step).Key))}
	},
})

// dialer makes the connections of a process to NATS, and can cut them.
type dialer struct {
	lose  atomic.Bool // the next delivery gets lost, with its connection
	mu    sync.Mutex
	conns []net.Conn
	cut   bool
}

// lossy is a connection that dialer.lose ends.
type lossy struct {
	net.Conn
	d *dialer
}

func (c lossy) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if bytes.Contains(p[:n], []byte(" $JS.ACK.")) && c.d.lose.CompareAndSwap(true, false) {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

func (d *dialer) Dial(network, address string) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cut {
		return nil, errors.New("the network is cut")
	}
	c, err := net.DialTimeout(network, address, 5*time.Second)
	if err != nil {
		return nil, err
	}
	d.conns = append(d.conns, c)
	return lossy{c, d}, nil
}

// isolate cuts the connections, and all later ones while on.
func (d *dialer) isolate(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cut = on
	for _, c := range d.conns {
		_ = c.Close()
	}
	d.conns = nil
}

// process is a process that consumes: it has its own ways to the database and to NATS.
type process struct {
	*running
	net *dialer
	db  *pgtest.Proxy
}

func newProcess(t testing.TB, b *broker, pool *pgxpool.Pool, e *effects) *process {
	t.Helper()
	p := &process{net: &dialer{}, db: pgtest.NewProxy(t, pool)}
	p.running = run(t, p.db.Pool(t), e, b.config(func(c *nats.Config) {
		c.AckWait, c.Receive.ShutdownTimeout, c.Receive.MaxAttempts = 6*time.Second, 2*time.Second, 1000
		c.Options = []natsgo.Option{natsgo.SetCustomDialer(p.net)}
	}))
	return p
}

// sender is the publisher of the relay. It publishes one message of a key after another, with the envelope of
// publish/nats. That publisher is not a requirement of this module: consume/relaytest tests the two together.
type sender struct{ js jetstream.JetStream }

func (s sender) Publish(ctx context.Context, events []publish.Outgoing) []error {
	encoder := publish.CloudEvents("/users", publish.Binary)
	return publish.Each(ctx, events, 64, func(ctx context.Context, o publish.Outgoing) error {
		m, err := encoder.Encode(o)
		if err != nil {
			return err
		}
		msg := natsgo.NewMsg(o.Destination)
		msg.Data = m.Body
		msg.Header["content-type"] = []string{m.ContentType}
		for name, value := range m.Attributes {
			msg.Header["ce-"+name] = []string{value}
		}
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		if _, err := s.js.PublishMsg(ctx, msg, jetstream.WithMsgID(o.ID.String())); err != nil {
			return outbox.Unavailable(err)
		}
		return nil
	})
}

// TestConsumeUnderFaults: a listener publishes events to JetStream, and two processes consume them, while the server is killed,
// connections are cut, the database goes away, effects fail, and processes are cut off and replaced. In the end the effect of
// each event is there once, in order per key. In a campaign these are 20,000 events.
func TestConsumeUnderFaults(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	keys, each := campaign.Of(60, 400), campaign.Of(20, 50)
	b, pool := newBroker(t), database(t)
	e := &effects{}
	processes := []*process{newProcess(t, b, pool, e), newProcess(t, b, pool, e)}
	both := func(f func(p *process)) {
		for _, p := range processes {
			f(p)
		}
	}
	moment := func() { <-time.After(300 * time.Millisecond) }
	faults := []func(){
		func() { both(func(p *process) { p.db.Cut() }) },
		func() { b.kill(); b.start() },
		func() { // the database is away
			both(func(p *process) { p.db.Swallow(); p.db.Cut() })
			moment()
			both(func(p *process) { p.db.Pass() })
		},
		func() { both(func(p *process) { p.net.isolate(true); p.net.isolate(false) }) },
		func() { // a process is cut off from everything, and another one replaces it
			for i, p := range processes {
				p.db.Swallow()
				p.net.isolate(true)
				p.db.Cut()
				processes[i] = newProcess(t, b, pool, e)
				if err := p.stop(); err != nil {
					t.Errorf("process: %v", err)
				}
			}
		},
		func() { // a rolling restart
			for i, p := range processes {
				if err := p.stop(); err != nil {
					t.Errorf("process: %v", err)
				}
				processes[i] = newProcess(t, b, pool, e)
			}
		},
		func() { b.kill(); moment(); b.start() },
	}
	due := make(chan func(), len(faults))
	var calls atomic.Int64
	every := int64(keys * each / (len(faults) + 1))
	e.set(func(context.Context, pgx.Tx, step) error {
		call := calls.Add(1)
		if n := call / every; call%every == 0 && int(n) <= len(faults) {
			due <- faults[n-1]
		}
		switch {
		case call%197 == 0:
			return errors.New("the effect failed")
		case call%331 == 0:
			panic("the effect panicked")
		case call%499 == 0:
			return consume.Unavailable(errors.New("the ledger is away"))
		}
		return nil
	})

	quiet := slog.New(slog.DiscardHandler)
	l, err := listener.New(pool, listener.Spec{
		Name: "relay", Retry: outbox.Retry{MaxAttempts: 1000, BaseDelay: 10 * time.Millisecond, MaxDelay: 100 * time.Millisecond},
	}, listener.Config{BatchSize: 500, Logger: quiet, Publishers: map[string]publish.Publisher{"nats": sender{b.js}}},
		listener.Publish(stepEnqueued, publish.Publication{Broker: "nats", Destination: "users.step"}))
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	working.Go(func() { pgtest.Check(t, l.Run(ctx)) })
	working.Go(func() {
		steps := make([]step, keys)
		for n := range each {
			for k := range steps {
				steps[k] = step{Key: fmt.Sprintf("k%d", k), N: n + 1}
			}
			if !pgtest.Check(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				_, err := stepEnqueued.EnqueueMany(ctx, tx, steps)
				return err
			})) {
				return
			}
		}
	})
	began := time.Now()
	for done := 0; pgtest.Count(t, pool, "SELECT count(*) FROM effects") < keys*each || done < len(faults); {
		select {
		case fault := <-due:
			fault()
			done++
		case <-time.After(50 * time.Millisecond):
		}
		require.Less(t, time.Since(began), 10*time.Minute, "only %d of %d effects", pgtest.Count(t, pool, "SELECT count(*) FROM effects"), keys*each)
	}
	took := time.Since(began)
	b.acknowledged("projection")
	pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.inbox_messages")
	names := make([]string, keys)
	for k := range names {
		names[k] = fmt.Sprintf("k%d", k)
	}
	requireSteps(t, pool, each, names...)
	require.Equal(t, keys*each, pgtest.Count(t, pool, "SELECT count(*) FROM effects"))
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
	t.Logf("%d effects for %d events in %s", calls.Load(), keys*each, took.Round(time.Millisecond))
}
