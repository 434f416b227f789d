package amqp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume/amqp"
	"github.com/outboxgen/outboxgen/internal/testing/brokertest"
	"github.com/outboxgen/outboxgen/internal/testing/campaign"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

const variable = "OUTBOXGEN_TEST_AMQP_CONSUMER"

// orders are those of a child that consumes.
type orders struct {
	Database, URL, Queue string
	Before               bool // it stops in front of a commit, else behind it
}

// crashed is the n-th event of each key, at which a child waits to be killed.
const crashed = 7

func crashing(c *amqp.Config) { c.Receive.BatchSize = 10 }

// TestChild is the process that TestKilledInABatch kills.
func TestChild(t *testing.T) {
	text := os.Getenv(variable)
	if text == "" {
		t.Skip("runs in a child only")
	}
	var o orders
	require.NoError(t, json.Unmarshal([]byte(text), &o))
	pool, err := pgxpool.New(t.Context(), o.Database)
	require.NoError(t, err)
	e := &effects{}
	e.set(func(_ context.Context, _ pgx.Tx, s step) error {
		if s.N%10 == crashed && o.Before {
			fmt.Println("in a batch")
			select {}
		}
		return nil
	})
	cfg := configOf(o.URL, o.Queue, crashing)
	if !o.Before {
		applied := 0
		cfg.Receive.Begin = func(context.Context, pgx.Tx) error {
			if applied++; applied > 3 {
				fmt.Println("in a batch") // earlier transactions have committed, and their messages are not acknowledged
				select {}
			}
			return nil
		}
		cfg.Receive.Concurrency = 1
	}
	t.Fatal(amqp.Run(t.Context(), pool, consumerOf(t, e), cfg))
}

// TestKilledInABatch: processes are killed in a transaction, and between transactions of messages that they hold together and have
// not acknowledged. Nothing is lost, the order per key is kept, and each effect happens once.
func TestKilledInABatch(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]amqp091.Table{"classic": classic, "quorum": quorum} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, pool := newBroker(t, kind), database(t)
			keys := []string{"a", "b", "c", "d", "e"}
			rounds := campaign.Of(4, 50)
			for i := range rounds {
				b.put(i*10+1, (i+1)*10, keys...)
				child := runtimetest.Spawn(t, "TestChild", variable, orders{runtimetest.ChildURL(t, pool), b.URL("guest"), b.queue, i%2 == 0})
				require.Contains(t, child.Await(t, "in a batch"), "in a batch")
				child.Kill()
			}
			before := pgtest.Count(t, pool, "SELECT count(*) FROM effects")
			require.Positive(t, before, "no process was killed behind a commit")
			require.Less(t, before, rounds*10*len(keys), "no process was killed in front of a commit")
			r := run(t, pool, &effects{}, b.config(crashing))
			settlesAt(t, pool, rounds*10*len(keys))
			require.NoError(t, r.stop())
			b.left(0)
			requireSteps(t, pool, rounds*10, keys...)
			require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.inbox_messages"))
		})
	}
}

// process is a process that consumes: it has its own ways to the database and to RabbitMQ.
type process struct {
	*running
	net *brokertest.Proxy
	db  *pgtest.Proxy
}

func newProcess(t testing.TB, b *broker, pool *pgxpool.Pool, e *effects) *process {
	t.Helper()
	p := &process{net: brokertest.NewProxy(t, b.Addr()), db: pgtest.NewProxy(t, pool)}
	p.running = run(t, p.db.Pool(t), e, configOf(p.net.URL("guest"), b.queue, func(c *amqp.Config) {
		c.Prefetch, c.Receive.ShutdownTimeout, c.Receive.MaxAttempts = 50, 2*time.Second, 1000
	}))
	return p
}

// TestConsumeUnderFaults: two processes consume a queue, while effects fail, connections to RabbitMQ and to the database are cut
// or silent, and processes are replaced. In the end the effect of each event is there once, in order per key.
func TestConsumeUnderFaults(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, kind := range map[string]amqp091.Table{"classic": classic, "quorum": quorum} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, pool, e := newBroker(t, kind), database(t), &effects{}
			names := make([]string, campaign.Of(20, 100))
			for k := range names {
				names[k] = fmt.Sprintf("k%d", k)
			}
			each := campaign.Of(40, 200)
			e.set(func(context.Context, pgx.Tx, step) error {
				switch rand.IntN(300) {
				case 0:
					return errors.New("the effect failed")
				case 1:
					panic("the effect panicked")
				}
				return nil
			})
			processes := []*process{newProcess(t, b, pool, e), newProcess(t, b, pool, e)}
			faults := []func(p *process){
				func(p *process) { p.net.Cut(false) },
				func(p *process) { p.net.Hang() },
				func(p *process) { p.db.Cut() },
				func(p *process) { p.net.Release() },
				func(p *process) { p.db.Swallow(); p.db.Cut(); p.db.Pass() },
			}
			for n := 1; n <= each; n++ {
				b.put(n, n, names...)
				if n%4 != 0 {
					continue
				}
				i, fault := n/4%len(processes), n/4%(len(faults)+1)
				if fault < len(faults) {
					faults[fault](processes[i])
					continue
				}
				require.NoError(t, processes[i].stop())
				processes[i] = newProcess(t, b, pool, e)
			}
			for _, p := range processes {
				p.net.Release()
			}
			settlesAt(t, pool, each*len(names))
			pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.inbox_messages")
			for _, p := range processes {
				require.NoError(t, p.stop())
			}
			b.left(0)
			requireSteps(t, pool, each, names...)
		})
	}
}
