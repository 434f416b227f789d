package nats_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume/nats"
	"github.com/outboxgen/outboxgen/internal/testing/campaign"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

const variable = "OUTBOXGEN_TEST_NATS_CONSUMER"

// orders are those of a child that consumes.
type orders struct {
	Database, URL string
	Before        bool // it stops in front of a commit, else behind it
}

// crashed is the n-th event of each key, at which a child waits to be killed.
const crashed = 7

func crashing(c *nats.Config) { c.AckWait, c.Receive.BatchSize = 6*time.Second, 10 }

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
	cfg := (&broker{}).config(crashing, func(c *nats.Config) { c.URL = o.URL })
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
	receiver, err := nats.New(pool, consumerOf(t, e), cfg)
	require.NoError(t, err)
	t.Fatal(receiver.Run(t.Context()))
}

// TestKilledInABatch: processes are killed in a transaction, and between transactions of messages that they have received
// together and not acknowledged. Nothing is lost, the order per key is kept, and each effect happens once.
func TestKilledInABatch(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t) // a killed process has its messages for an AckWait
	b, pool := newBroker(t), database(t)
	keys := []string{"a", "b", "c", "d", "e"}
	rounds := campaign.Of(4, 50)
	for i := range rounds {
		b.put(i*10+1, (i+1)*10, keys...)
		child := runtimetest.Spawn(t, "TestChild", variable, orders{runtimetest.ChildURL(t, pool), b.url("", ""), i%2 == 0})
		require.Contains(t, child.Await(t, "in a batch"), "in a batch")
		child.Kill()
	}
	before := pgtest.Count(t, pool, "SELECT count(*) FROM effects")
	require.Positive(t, before, "no process was killed behind a commit")
	require.Less(t, before, rounds*10*len(keys), "no process was killed in front of a commit")
	run(t, pool, &effects{}, b.config(crashing))
	settlesAt(t, pool, rounds*10*len(keys))
	b.acknowledged("projection")
	requireSteps(t, pool, rounds*10, keys...)
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.inbox_messages"))
}
