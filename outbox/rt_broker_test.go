package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
)

// broker is a publisher that keeps what it gets and answers as answer says.
type broker struct {
	mu     sync.Mutex
	got    []outbox.Outgoing
	answer func(outbox.Outgoing) error
	told   chan struct{}
}

func newBroker() *broker { return &broker{told: make(chan struct{}, 1)} }

func (b *broker) Publish(_ context.Context, events []outbox.Outgoing) []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	errs := make([]error, len(events))
	for i, e := range events {
		if b.answer != nil {
			errs[i] = b.answer(e)
		}
		if errs[i] == nil {
			b.got = append(b.got, e)
		}
	}
	select {
	case b.told <- struct{}{}:
	default:
	}
	return errs
}

var publishedTopic = outbox.NewTopic[said](outbox.TopicSpec{
	Namespace: "test", Name: "published", Version: 1, Retry: late,
	Keys: func(v any) outbox.Keys {
		n := v.(*said)
		return outbox.Keys{Partition: outbox.NewKey(outbox.StringPart("key", n.Key))}
	},
})

func enqueueSaid(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	inTx(t, pool, func(tx pgx.Tx) {
		for i := range n {
			_, err := publishedTopic.Untyped().Enqueue(t.Context(), tx, said{Key: "a", N: i}, outbox.WithHeaders(map[string]string{"own": "yes"}))
			require.NoError(t, err)
		}
	})
}

// inOrder has a broker answer ErrBehind for what comes behind a failure of its key, as a publisher does, and fail what
// fails says.
func (b *broker) inOrder(fails func(key string) error) {
	failed := map[string]bool{}
	b.answer = func(o outbox.Outgoing) error {
		if failed[o.Key] {
			return outbox.ErrBehind
		}
		err := fails(o.Key)
		failed[o.Key] = err != nil
		return err
	}
}

func (b *broker) names(t testing.TB) []string {
	t.Helper()
	names := make([]string, len(b.got))
	for i, o := range b.got {
		var p said
		require.NoError(t, json.Unmarshal(o.Payload, &p))
		names[i] = fmt.Sprintf("%s%d", p.Key, p.N)
	}
	return names
}
