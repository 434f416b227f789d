package runtimetest

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// Broker is a publisher that keeps what it gets and returns the results of Answer.
type Broker struct {
	Mu     sync.Mutex
	Got    []publish.Outgoing
	Answer func(publish.Outgoing) error
	Told   chan struct{}
}

func NewBroker() *Broker { return &Broker{Told: make(chan struct{}, 1)} }

func (b *Broker) Publish(_ context.Context, events []publish.Outgoing) []error {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	errs := make([]error, len(events))
	for i, e := range events {
		if b.Answer != nil {
			errs[i] = b.Answer(e)
		}
		if errs[i] == nil {
			b.Got = append(b.Got, e)
		}
	}
	select {
	case b.Told <- struct{}{}:
	default:
	}
	return errs
}

var PublishedTopic = outbox.NewTopic[Said](outbox.TopicSpec{
	Namespace: "test", Name: "published", Version: 1, Retry: LateRetry,
	Keys: func(v any) outbox.Keys {
		n := v.(*Said)
		return outbox.Keys{Partition: eventkey.NewKey(eventkey.StringPart("key", n.Key))}
	},
})

func EnqueueSaid(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		for i := range n {
			_, err := PublishedTopic.Enqueue(t.Context(), tx, Said{Key: "a", N: i},
				outbox.WithHeaders(map[string]string{"own": "yes"}))
			require.NoError(t, err)
		}
	})
}

// InOrder makes a broker fail the events of keys for which fails returns an error. For later events of such a key it
// returns ErrBehind, as a publisher does.
func (b *Broker) InOrder(fails func(key string) error) {
	failed := map[string]bool{}
	b.Answer = func(o publish.Outgoing) error {
		if failed[o.Key] {
			return outbox.ErrBehind
		}
		err := fails(o.Key)
		failed[o.Key] = err != nil
		return err
	}
}

func (b *Broker) Names(t testing.TB) []string {
	t.Helper()
	names := make([]string, len(b.Got))
	for i, o := range b.Got {
		var p Said
		require.NoError(t, json.Unmarshal(o.Payload, &p))
		names[i] = fmt.Sprintf("%s%d", p.Key, p.N)
	}
	return names
}
