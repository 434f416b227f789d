package runtimetest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// LateRetry is a backoff that does not end during a test.
var LateRetry = outbox.Retry{BaseDelay: time.Hour, MaxDelay: time.Hour}

// FailFor makes the events of keys fail.
func FailFor(keys ...string) func(outbox.Delivery[Said]) error {
	return func(d outbox.Delivery[Said]) error {
		for _, key := range keys {
			if d.Payload.Key == key {
				return ErrHandler
			}
		}
		return nil
	}
}

// Whole requires that a listener has got once each event that it should have. A listener that starts at the earliest
// event should have every event that was not pruned when it was attached. One that starts at the latest should have
// every event that was not committed then.
func (n *Notes) Whole(t testing.TB, pool *pgxpool.Pool, name string, latest bool) {
	t.Helper()
	got := make(map[uuid.UUID]int)
	for _, d := range n.Got {
		got[d.ID]++
	}
	rows, err := pool.Query(t.Context(), `
		SELECT w.id, CASE WHEN $2 THEN NOT pg_visible_in_snapshot(w.xid, a.lo)
			ELSE d.xid IS NULL OR NOT pg_visible_in_snapshot(d.xid, a.seen) END AS due
		FROM written AS w CROSS JOIN attached AS a LEFT JOIN deleted AS d ON d.id = w.id
		WHERE a.listener = $1`, name, latest)
	require.NoError(t, err)
	var id uuid.UUID
	var due bool
	_, err = pgx.ForEachRow(rows, []any{&id, &due}, func() error {
		want := 0
		if due {
			want = 1
		}
		require.Equal(t, want, got[id], "listener %s", name)
		delete(got, id)
		return nil
	})
	require.NoError(t, err)
	require.Empty(t, got, "listener %s got what was not committed", name)
}

// Failing makes the events of these names, such as "a1", fail.
func Failing(names ...string) func(outbox.Delivery[Said]) error {
	return func(d outbox.Delivery[Said]) error {
		for _, name := range names {
			if name == fmt.Sprint(d.Payload.Key, d.Payload.N) {
				return ErrHandler
			}
		}
		return nil
	}
}

// Calls returns the events of handler calls since the last Calls, such as "a1", in order.
func (n *Notes) Calls() (names []string) {
	for {
		select {
		case d := <-n.Started:
			names = append(names, fmt.Sprint(d.Payload.Key, d.Payload.N))
		default:
			return names
		}
	}
}

// TableOf returns the table in which a failed event waits.
func TableOf(park bool) string {
	return map[bool]string{false: "outbox.listeners", true: "outbox.parked"}[park]
}

// BothModes runs test for a leased and a transactional listener.
func BothModes(t *testing.T, test func(t *testing.T, transactional bool)) {
	t.Helper()
	for _, transactional := range []bool{false, true} {
		t.Run(fmt.Sprintf("transactional %t", transactional), func(t *testing.T) {
			t.Parallel()
			test(t, transactional)
		})
	}
}

// ListenAs is ListenTo or ListenTx.
func ListenAs(
	t testing.TB, pool *pgxpool.Pool, transactional bool, spec listener.Spec, cfg listener.Config, h *Notes,
) *listener.Listener {
	t.Helper()
	if transactional {
		return ListenTx(t, pool, spec, cfg, h)
	}
	return ListenTo(t, pool, spec, cfg, h)
}

// Said is the payload of the log topics of these tests: the Nth event of Key.
type Said struct {
	Key string `json:"key"`
	N   int    `json:"n"`
}

var SaidTopic = outbox.NewTopic[Said](outbox.TopicSpec{
	Namespace: "test", Name: "said", Version: 1, Log: true,
	Keys: func(v any) outbox.Keys {
		n := v.(*Said)
		return outbox.Keys{Partition: eventkey.NewKey(eventkey.StringPart("key", n.Key))}
	},
})

// LooseTopic has no partition key.
var LooseTopic = outbox.NewTopic[Said](outbox.TopicSpec{Namespace: "test", Name: "loose", Version: 1, Log: true})

// Notes is a handler that records what it got, and fails if Fail does.
type Notes struct {
	Mu   sync.Mutex
	Got  []outbox.Delivery[Said]
	Fail func(d outbox.Delivery[Said]) error // called before the event is recorded
	Told chan struct{}                       // holds one

	Started chan outbox.Delivery[Said] // the events of handler calls, as long as there is room
	Hold    chan struct{}              // if set, handlers wait until it is closed or their contexts end
}

func NewNotes() *Notes {
	return &Notes{Told: make(chan struct{}, 1), Started: make(chan outbox.Delivery[Said], 1000)}
}

func (n *Notes) Handle(ctx context.Context, d outbox.Delivery[Said]) error {
	return n.work(ctx, d, func() {})
}

// work is the handler. While Hold blocks it, it calls busy regularly.
func (n *Notes) work(ctx context.Context, d outbox.Delivery[Said], busy func()) error {
	select {
	case n.Started <- d:
	default:
	}
	if n.Hold != nil {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for held := true; held; {
			select {
			case <-n.Hold:
				held = false
			case <-tick.C:
				busy()
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	if n.Fail != nil {
		if err := n.Fail(d); err != nil {
			return err
		}
	}
	n.Mu.Lock()
	defer n.Mu.Unlock()
	n.Got = append(n.Got, d)
	select {
	case n.Told <- struct{}{}:
	default:
	}
	return nil
}

func (n *Notes) HandleTx(ctx context.Context, tx pgx.Tx, d outbox.Delivery[Said]) error {
	if _, err := tx.Exec(ctx, EffectSQL, d.ID, d.Payload.Key, d.Payload.N, d.Attempt); err != nil {
		return err
	}
	return n.work(ctx, d, func() { _, _ = tx.Exec(ctx, "SELECT 1") })
}

// EffectSQL is the statement by which transactional handlers write their effect.
const EffectSQL = "INSERT INTO effects (event_id, key, n, attempt) VALUES ($1, $2, $3, $4)"

func MakeEffects(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Execute(t, pool,
		`CREATE TABLE IF NOT EXISTS effects (no bigint GENERATED ALWAYS AS IDENTITY, event_id uuid NOT NULL, key text NOT NULL,
		n int NOT NULL, attempt int NOT NULL)`)
}

// Names returns the handled events as key and number, in order.
func (n *Notes) Names() []string {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	names := make([]string, len(n.Got))
	for i, d := range n.Got {
		names[i] = fmt.Sprintf("%s%d", d.Payload.Key, d.Payload.N)
	}
	return names
}

// Await waits until count events were handled.
func (n *Notes) Await(t testing.TB, count int) {
	t.Helper()
	timeout := time.After(pgtest.Patience)
	for {
		n.Mu.Lock()
		got := len(n.Got)
		n.Mu.Unlock()
		if got >= count {
			return
		}
		select {
		case <-n.Told:
		case <-timeout:
			require.FailNow(t, "events did not come", "%d of %d", got, count)
		}
	}
}

// WithLateRetries makes failed events wait for RetryNow, unless spec sets a retry: on a slow machine a drain may take
// longer than a short backoff.
func WithLateRetries(spec listener.Spec) listener.Spec {
	if spec.Retry.BaseDelay == 0 {
		spec.Retry.BaseDelay, spec.Retry.MaxDelay = LateRetry.BaseDelay, LateRetry.MaxDelay
	}
	return spec
}

// ListenTo returns a listener of SaidTopic and LooseTopic whose events h handles.
func ListenTo(t testing.TB, pool *pgxpool.Pool, spec listener.Spec, cfg listener.Config, h *Notes) *listener.Listener {
	t.Helper()
	if spec.Name == "" {
		spec.Name = "ears"
	}
	if cfg.Logger == nil {
		cfg.Logger = DiscardLogger()
	}
	l, err := listener.New(pool, WithLateRetries(spec), cfg,
		listener.Handle(SaidTopic, h, h.Handle), listener.Handle(LooseTopic, h, h.Handle))
	require.NoError(t, err)
	return l
}

// ListenTx is ListenTo in transactional mode.
func ListenTx(t testing.TB, pool *pgxpool.Pool, spec listener.Spec, cfg listener.Config, h *Notes) *listener.Listener {
	t.Helper()
	return ListenTxOn(t, pool, pool, spec, cfg, h)
}

// ListenTxOn is ListenTx with one pool for the table of effects, and another for the listener.
func ListenTxOn(
	t testing.TB, setup, pool *pgxpool.Pool, spec listener.Spec, cfg listener.Config, h *Notes,
) *listener.Listener {
	t.Helper()
	if spec.Name == "" {
		spec.Name = "ears"
	}
	if cfg.Logger == nil {
		cfg.Logger = DiscardLogger()
	}
	MakeEffects(t, setup)
	l, err := listener.New(pool, WithLateRetries(spec), cfg, listener.HandleTx(SaidTopic, h, h.HandleTx))
	require.NoError(t, err)
	return l
}

// Put commits one event.
func Put(t testing.TB, pool *pgxpool.Pool, key string, n int) {
	t.Helper()
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := SaidTopic.Enqueue(t.Context(), tx, Said{Key: key, N: n})
		require.NoError(t, err)
	})
}

// PutAll commits events with names like "a1" in one transaction.
func PutAll(t testing.TB, pool *pgxpool.Pool, names ...string) {
	t.Helper()
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		ps := make([]Said, len(names))
		for i, name := range names {
			_, err := fmt.Sscanf(name[1:], "%d", &ps[i].N)
			require.NoError(t, err)
			ps[i].Key = name[:1]
		}
		_, err := SaidTopic.EnqueueMany(t.Context(), tx, ps)
		require.NoError(t, err)
	})
}

// Crowd enqueues the events of several keys, which it numbers from 1.
type Crowd struct{ Last map[string]int }

func NewCrowd(keys ...string) *Crowd {
	c := &Crowd{Last: make(map[string]int)}
	for _, key := range keys {
		c.Last[key] = 0
	}
	return c
}

// Enqueue commits n events of random keys in one transaction.
func (c *Crowd) Enqueue(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	keys := slices.Sorted(maps.Keys(c.Last))
	ps := make([]Said, n)
	for i := range ps {
		key := keys[rand.IntN(len(keys))]
		c.Last[key]++
		ps[i] = Said{Key: key, N: c.Last[key]}
	}
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := SaidTopic.EnqueueMany(t.Context(), tx, ps)
		require.NoError(t, err)
	})
}

// InOrder requires that the handled events of each key are numbered from 1 without a gap or a repetition, and returns
// their number.
func (n *Notes) InOrder(t testing.TB) int {
	t.Helper()
	n.Mu.Lock()
	defer n.Mu.Unlock()
	last := make(map[string]int)
	for _, d := range n.Got {
		require.Equal(t, last[d.Payload.Key]+1, d.Payload.N, "key %s", d.Payload.Key)
		last[d.Payload.Key]++
	}
	return len(n.Got)
}

// Disorder counts effects that come after a later one of their key. Only the first effect of each event counts.
const Disorder = `SELECT count(*)::int FROM (
	SELECT f.n, max(f.n) OVER (PARTITION BY f.key ORDER BY f.no ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
	FROM (SELECT key, n, min(no) AS no FROM effects GROUP BY event_id, key, n) AS f
) AS o WHERE o.n < o.before`

func DrainAll(t testing.TB, l *listener.Listener) listener.Report {
	t.Helper()
	r, err := l.Drain(t.Context())
	require.NoError(t, err)
	return r
}

// RetryNow ends every backoff of listeners.
func RetryNow(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Execute(t, pool, "UPDATE outbox.listeners SET retry_after = NULL")
	pgtest.Execute(t, pool, "UPDATE outbox.parked SET retry_after = statement_timestamp() WHERE retry_after IS NOT NULL")
}

// StartListener runs l until the test ends or stop is called, and requires that it ends without an error.
func StartListener(t testing.TB, l *listener.Listener) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- l.Run(ctx) }()
	// A function in sync.OnceFunc must not fail the test: that would end its goroutine, which causes a panic.
	end := sync.OnceValue(func() error {
		cancel()
		return <-over
	})
	t.Cleanup(func() { assert.NoError(t, end(), "end of the listener") })
	return func() {
		t.Helper()
		require.NoError(t, end())
	}
}
