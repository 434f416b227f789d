package outbox_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
)

// said is the payload of the log topics of these tests: the Nth event of Key.
type said struct {
	Key string `json:"key"`
	N   int    `json:"n"`
}

var saidTopic = outbox.Topic[said]{
	Namespace: "test", Name: "said", Version: 1, Log: true,
	Keys: func(n said) outbox.Keys { return outbox.Keys{Partition: outbox.NewKey(outbox.StringPart("key", n.Key))} },
}

// looseTopic has no partition key.
var looseTopic = outbox.Topic[said]{Namespace: "test", Name: "loose", Version: 1, Log: true}

// notes is a handler that keeps what it got and fails as fail says.
type notes struct {
	mu   sync.Mutex
	got  []outbox.Delivery[said]
	fail func(d outbox.Delivery[said]) error // before it is kept
	told chan struct{}                       // holds one
}

func newNotes() *notes { return &notes{told: make(chan struct{}, 1)} }

func (n *notes) handle(_ context.Context, d outbox.Delivery[said]) error {
	if n.fail != nil {
		if err := n.fail(d); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.got = append(n.got, d)
	select {
	case n.told <- struct{}{}:
	default:
	}
	return nil
}

func (n *notes) handleTx(ctx context.Context, tx pgx.Tx, d outbox.Delivery[said]) error {
	if _, err := tx.Exec(ctx, "INSERT INTO effects (event_id, key, n) VALUES ($1, $2, $3)", d.ID, d.Payload.Key, d.Payload.N); err != nil {
		return err
	}
	return n.handle(ctx, d)
}

// names returns what was handled, as key and number, in order.
func (n *notes) names() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	names := make([]string, len(n.got))
	for i, d := range n.got {
		names[i] = fmt.Sprintf("%s%d", d.Payload.Key, d.Payload.N)
	}
	return names
}

// await waits until count events were handled.
func (n *notes) await(t testing.TB, count int) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		n.mu.Lock()
		got := len(n.got)
		n.mu.Unlock()
		if got >= count {
			return
		}
		select {
		case <-n.told:
		case <-timeout:
			require.FailNow(t, "events did not come", "%d of %d", got, count)
		}
	}
}

// listenTo returns a listener called name that has h handle said events.
func listenTo(t testing.TB, pool *pgxpool.Pool, spec outbox.ListenerSpec, cfg outbox.ListenerConfig, h *notes) *outbox.Listener {
	t.Helper()
	if spec.Name == "" {
		spec.Name = "ears"
	}
	if cfg.Logger == nil {
		cfg.Logger = quiet()
	}
	l, err := outbox.NewListener(pool, spec, cfg,
		outbox.Listen(saidTopic, h, (*notes).handle), outbox.Listen(looseTopic, h, (*notes).handle))
	require.NoError(t, err)
	return l
}

// listenTx is listenTo in transactional mode.
func listenTx(t testing.TB, pool *pgxpool.Pool, spec outbox.ListenerSpec, cfg outbox.ListenerConfig, h *notes) *outbox.Listener {
	t.Helper()
	if spec.Name == "" {
		spec.Name = "ears"
	}
	if cfg.Logger == nil {
		cfg.Logger = quiet()
	}
	execute(t, pool, "CREATE TABLE IF NOT EXISTS effects (no bigint GENERATED ALWAYS AS IDENTITY, event_id uuid NOT NULL, key text NOT NULL, n int NOT NULL)")
	l, err := outbox.NewListener(pool, spec, cfg, outbox.ListenTx(saidTopic, h, (*notes).handleTx))
	require.NoError(t, err)
	return l
}

// put1 commits one event.
func put1(t testing.TB, pool *pgxpool.Pool, key string, n int) {
	t.Helper()
	inTx(t, pool, func(tx pgx.Tx) {
		_, err := saidTopic.Enqueue(t.Context(), tx, said{Key: key, N: n})
		require.NoError(t, err)
	})
}

// putAll commits events named like "a1" in one transaction.
func putAll(t testing.TB, pool *pgxpool.Pool, names ...string) {
	t.Helper()
	inTx(t, pool, func(tx pgx.Tx) {
		ps := make([]said, len(names))
		for i, name := range names {
			_, err := fmt.Sscanf(name[1:], "%d", &ps[i].N)
			require.NoError(t, err)
			ps[i].Key = name[:1]
		}
		_, err := saidTopic.EnqueueMany(t.Context(), tx, ps)
		require.NoError(t, err)
	})
}

func drainAll(t testing.TB, l *outbox.Listener) outbox.DrainReport {
	t.Helper()
	r, err := l.Drain(t.Context())
	require.NoError(t, err)
	return r
}

// retryNow ends every back-off of listeners.
func retryNow(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	execute(t, pool, "UPDATE outbox.listeners SET retry_after = NULL")
	execute(t, pool, "UPDATE outbox.parked SET retry_after = statement_timestamp() WHERE retry_after IS NOT NULL")
}

// startListener runs l until the test ends, or stop is called, and demands that it ends well.
func startListener(t testing.TB, l *outbox.Listener) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- l.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-over)
	})
	t.Cleanup(stop)
	return stop
}
