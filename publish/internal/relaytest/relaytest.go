// Package relaytest relays events from PostgreSQL through a failing broker into a table in PostgreSQL. Then it compares the
// table with what was enqueued: nothing is lost, the order of a log is kept per key, and each effect happened once.
package relaytest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// Message is an event as a consumer gets it.
type Message struct {
	ID      uuid.UUID
	Payload []byte
}

// Broker is the broker between the two ends.
type Broker struct {
	Publisher   publish.Publisher
	Destination string
	// Consume reads what the broker has at Destination, in order, and hands it to apply in batches. It ends when ctx ends or
	// apply returns an error, which it then returns. The next call continues behind the last batch for which apply returned
	// nil, or earlier. Faults do not end it.
	Consume func(ctx context.Context, apply func([]Message) error) error
	// Faults happen one after another while events flow. Each returns when the broker works again.
	Faults []func()
}

// patience is how long the whole test may take.
const patience = 5 * time.Minute

const (
	keys    = 64
	writers = 4
	batch   = 250 // the maximum number of events in a transaction
	window  = 10  // one in so many events may be in flight, so that each fault meets some
	table   = `CREATE TABLE effects (no bigint GENERATED ALWAYS AS IDENTITY, event uuid NOT NULL, key text NOT NULL, n int NOT NULL)`
)

// step is the payload: the Nth event of a key, from 1.
type step struct {
	Key string `json:"key"`
	N   int    `json:"n"`
}

func topic(log bool) outbox.Topic[step] {
	return outbox.NewTopic[step](outbox.TopicSpec{
		Namespace: "relay", Name: "stepped", Version: 1, Log: log, Retry: quick,
		Keys: func(payload any) outbox.Keys {
			return outbox.Keys{Partition: eventkey.NewKey(eventkey.StringPart("key", payload.(*step).Key))}
		},
	})
}

// quick makes retries fast, because the faults are short.
var quick = outbox.Retry{MaxAttempts: 50, BaseDelay: 50 * time.Millisecond, MaxDelay: 500 * time.Millisecond}

// Log relays events of a log topic through a listener.
func Log(t testing.TB, b Broker, events int) {
	t.Helper()
	pool := pgtest.Database(t)
	l, err := listener.New(pool, listener.Spec{Name: "relay", Shards: 2, Retry: quick},
		listener.Config{
			BatchSize: 1000, PollInterval: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
			Publishers: map[string]publish.Publisher{"broker": b.Publisher},
		},
		listener.Publish(topic(true), publish.Publication{Broker: "broker", Destination: b.Destination}))
	require.NoError(t, err)
	relay(t, pool, b, topic(true), events, l.Run)
	require.Equal(t, 0, value(t, pool, "SELECT (SELECT count(*) FROM outbox.dead_letters) + (SELECT count(*) FROM outbox.parked)"))
	require.Equal(t, 0, value(t, pool, `SELECT count(*) FROM (SELECT n, row_number() OVER (PARTITION BY key ORDER BY no) AS want FROM effects) AS e
		WHERE n <> want`), "out of the order of their key")
}

// Queue relays events of a queue topic through two dispatchers. Such topics have no order.
func Queue(t testing.TB, b Broker, events int) {
	t.Helper()
	pool := pgtest.Database(t)
	stepped := topic(false)
	var runs []func(context.Context) error
	for range 2 {
		d, err := queue.NewDispatcher(pool,
			queue.Config{
				PollInterval: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
				Publishers: map[string]publish.Publisher{"broker": b.Publisher},
			},
			queue.Publish(stepped, publish.Publication{Broker: "broker", Destination: b.Destination}))
		require.NoError(t, err)
		runs = append(runs, d.Run)
	}
	relay(t, pool, b, stepped, events, runs...)
	require.Equal(t, 0, value(t, pool, "SELECT count(*) FROM outbox.event_status WHERE status <> 'delivered'"))
}

// relay writes events, runs the publishing side, and consumes until the effect of each event is there.
func relay(t testing.TB, pool *pgxpool.Pool, b Broker, topic outbox.Topic[step], events int, runs ...func(context.Context) error) {
	t.Helper()
	_, err := pool.Exec(t.Context(), table)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := &consumer{pool: pool, events: events, faults: len(b.Faults), now: make(chan struct{}, len(b.Faults)), all: make(chan struct{}), began: time.Now()}
	c.moved = sync.NewCond(&c.mu)
	c.inbox, err = inbox.New(inbox.Config{Group: "projection"})
	require.NoError(t, err)

	work, stop := context.WithCancel(ctx)
	var relays, others sync.WaitGroup
	defer relays.Wait()
	defer others.Wait()
	defer stop()
	for _, run := range runs {
		relays.Go(func() {
			if err := run(work); err != nil {
				t.Errorf("relay: %v", err)
			}
		})
	}
	others.Go(func() {
		for work.Err() == nil {
			err := b.Consume(work, func(ms []Message) error { return c.apply(work, ms) })
			if err != nil && !errors.Is(err, errCrashed) && work.Err() == nil {
				t.Errorf("consume: %v", err)
			}
		}
	})
	broken := make(chan struct{})
	others.Go(func() {
		defer close(broken)
		for _, fault := range b.Faults {
			select {
			case <-c.now:
				fault()
			case <-work.Done():
				return
			}
		}
	})
	for w := range writers {
		others.Go(func() { c.write(work, t, topic, w) })
	}
	for _, done := range []chan struct{}{c.all, broken} {
		select {
		case <-done:
		case <-ctx.Done():
			t.Errorf("%d of %d events have had their effect after %s", c.count(), events, patience)
			return
		}
	}
	stop()
	others.Wait()
	relays.Wait()
	c.verify(t)
}

// write commits the events of a quarter of the keys. It also enqueues events that are rolled back, which must not arrive.
func (c *consumer) write(ctx context.Context, t testing.TB, topic outbox.Topic[step], writer int) {
	events := c.events / writers
	batch := min(batch, events/window)
	for n := 0; n < events; n += batch {
		if !c.await(ctx, writers*(n+batch)-c.events/window) {
			return
		}
		for _, aborted := range []bool{true, false} {
			if aborted && n%(5*batch) > 0 {
				continue
			}
			err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
				steps := make([]step, min(batch, events-n))
				for i := range steps {
					key := (n + i) % (keys / writers)
					steps[i] = step{Key: fmt.Sprintf("key %d", writer+writers*key), N: (n+i)/(keys/writers) + 1}
					if aborted {
						steps[i].N = -1
					}
				}
				if _, err := topic.EnqueueMany(ctx, tx, steps); err != nil {
					return err
				}
				if aborted {
					return errAborted
				}
				return nil
			})
			if err != nil && !errors.Is(err, errAborted) {
				t.Errorf("enqueue: %v", err)
				return
			}
		}
	}
}

var (
	errAborted = errors.New("aborted")
	errCrashed = errors.New("crashed between the effect and the acknowledgement")
)

// consumer writes an effect for each event.
type consumer struct {
	pool   *pgxpool.Pool
	inbox  *inbox.Inbox
	events int
	faults int
	now    chan struct{} // receives when it is time for a fault
	all    chan struct{} // closed when the effect of each event is there

	mu                       sync.Mutex
	moved                    *sync.Cond // signals that had has grown
	batches, read, had, told int
	began                    time.Time
	took                     time.Duration
}

// await waits until the effects of so many events are there. It reports false if ctx ends first.
func (c *consumer) await(ctx context.Context, events int) bool {
	defer context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.moved.Broadcast()
	})()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.had < events && ctx.Err() == nil {
		c.moved.Wait()
	}
	return ctx.Err() == nil
}

func (c *consumer) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.had
}

// apply applies the effects of a batch, each once, and sometimes crashes afterwards.
func (c *consumer) apply(ctx context.Context, ms []Message) error {
	if len(ms) == 0 {
		return nil
	}
	ids := make([]uuid.UUID, len(ms))
	rows := make([][]any, len(ms))
	for i, m := range ms {
		var s step
		if err := json.Unmarshal(m.Payload, &s); err != nil {
			return fmt.Errorf("message %s: %w", m.ID, err)
		}
		ids[i], rows[i] = m.ID, []any{m.ID, s.Key, s.N}
	}
	handled := 0
	err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) (err error) {
		handled, err = c.inbox.OnceMany(ctx, tx, ids, func(ctx context.Context, fresh []int) error {
			effects := make([][]any, len(fresh))
			for i, at := range fresh {
				effects[i] = rows[at]
			}
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"event", "key", "n"}, pgx.CopyFromRows(effects))
			return err
		})
		return err
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.had
	c.batches, c.read, c.had = c.batches+1, c.read+len(ms), c.had+handled
	c.moved.Broadcast()
	for c.told < c.faults && c.had >= (c.told+1)*c.events/(c.faults+1) {
		c.told++
		c.now <- struct{}{}
	}
	if before < c.events && c.had >= c.events {
		c.took = time.Since(c.began)
		close(c.all)
	}
	if c.batches%7 == 0 {
		return errCrashed
	}
	return nil
}

// verify compares the effects with what was enqueued.
func (c *consumer) verify(t testing.TB) {
	t.Helper()
	require.Greater(t, c.read, c.events, "no event came twice, so the inbox was not tested")
	t.Logf("%d events, %d read, %d batches, in %s", c.events, c.read, c.batches, c.took.Round(time.Millisecond))
	require.Equal(t, c.events, value(t, c.pool, "SELECT count(*) FROM effects"), "effects")
	require.Equal(t, c.events, value(t, c.pool, "SELECT count(DISTINCT event) FROM effects"), "events with an effect")
	require.Equal(t, 0, value(t, c.pool, "SELECT count(*) FROM effects WHERE n < 1"), "effects of events that were rolled back")
}

func value(t testing.TB, pool *pgxpool.Pool, sql string) int {
	t.Helper()
	var n int
	require.NoError(t, pool.QueryRow(t.Context(), sql).Scan(&n))
	return n
}
