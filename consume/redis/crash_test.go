package redis_test

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
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume/redis"
	"github.com/outboxgen/outboxgen/internal/testing/campaign"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

const variable = "OUTBOXGEN_TEST_REDIS_CONSUMER"

// orders are those of a child that consumes.
type orders struct {
	Database, Addr string
	Before         bool // it stops in front of a commit, else behind it
}

// crashed is the n-th event of each key, at which a child waits to be killed.
const crashed = 7

func crashing(c *redis.Config) { c.Receive.BatchSize = 10 }

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
	cfg := config(o.Addr, crashing)
	if !o.Before {
		applied := 0
		cfg.Receive.Begin = func(context.Context, pgx.Tx) error {
			if applied++; applied > 3 {
				fmt.Println("in a batch") // earlier transactions have committed, and their entries are not acknowledged
				select {}
			}
			return nil
		}
		cfg.Receive.Concurrency = 1
	}
	receiver, err := redis.New(pool, consumerOf(t, e), cfg)
	require.NoError(t, err)
	t.Fatal(receiver.Run(t.Context()))
}

// TestKilledInABatch: processes are killed in a transaction, and between transactions of entries that they have read together
// and not acknowledged. Nothing is lost, the order per key is kept, and each effect happens once.
func TestKilledInABatch(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	keys := []string{"a", "b", "c", "d", "e"}
	rounds := campaign.Of(4, 50)
	for i := range rounds {
		b.put(i*10+1, (i+1)*10, keys...)
		child := runtimetest.Spawn(t, "TestChild", variable, orders{runtimetest.ChildURL(t, pool), b.Addr(), i%2 == 0})
		require.Contains(t, child.Await(t, "in a batch"), "in a batch")
		child.Kill()
	}
	before := pgtest.Count(t, pool, "SELECT count(*) FROM effects")
	require.Positive(t, before, "no process was killed behind a commit")
	require.Less(t, before, rounds*10*len(keys), "no process was killed in front of a commit")
	run(t, pool, &effects{}, b.config(crashing))
	settlesAt(t, pool, rounds*10*len(keys))
	b.acknowledged(users)
	requireSteps(t, pool, rounds*10, keys...)
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.inbox_messages"))
}

// process is a process that consumes: it has its own ways to the database and to Redis.
type process struct {
	*running
	net *network
	db  *pgtest.Proxy
}

func newProcess(t testing.TB, b *broker, pool *pgxpool.Pool, e *effects) *process {
	t.Helper()
	p := &process{net: &network{}, db: pgtest.NewProxy(t, pool)}
	p.running = run(t, p.db.Pool(t), e, b.config(p.net.through(b.Addr()), func(c *redis.Config) {
		c.MaxPending, c.Receive.ShutdownTimeout, c.Receive.MaxAttempts = 50, 2*time.Second, 1000
	}))
	return p
}

// TestConsumeUnderFaults: two processes consume a stream, while effects fail, answers get lost, the server is killed,
// connections to it and to the database are cut, and processes are replaced. In the end the effect of each event is there
// once, in order per key.
func TestConsumeUnderFaults(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	b, pool, e := newBroker(t), database(t), &effects{}
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
		func(p *process) { p.net.lose.Store(true) },
		func(p *process) { p.net.isolate(true); p.net.isolate(false) },
		func(p *process) { p.db.Cut() },
		func(*process) { b.restart() },
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
	settlesAt(t, pool, each*len(names))
	pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.inbox_messages")
	b.acknowledged(users)
	requireSteps(t, pool, each, names...)
}
