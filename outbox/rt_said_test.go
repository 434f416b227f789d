package outbox_test

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

	"github.com/outboxgen/outboxgen/outbox"
)

// late is a back-off that does not end during a test.
var late = outbox.Retry{BaseDelay: time.Hour, MaxDelay: time.Hour}

// failFor has events of a key fail.
func failFor(keys ...string) func(outbox.Delivery[said]) error {
	return func(d outbox.Delivery[said]) error {
		for _, key := range keys {
			if d.Payload.Key == key {
				return errHandler
			}
		}
		return nil
	}
}

// whole demands that a listener has got each event once that it should have: at earliest what no prune had deleted when
// it was attached, at latest what was not committed then.
func (n *notes) whole(t testing.TB, pool *pgxpool.Pool, name string, latest bool) {
	t.Helper()
	got := make(map[uuid.UUID]int)
	for _, d := range n.got {
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

// failing makes the events of these names, such as "a1", fail.
func failing(names ...string) func(outbox.Delivery[said]) error {
	return func(d outbox.Delivery[said]) error {
		for _, name := range names {
			if name == fmt.Sprint(d.Payload.Key, d.Payload.N) {
				return errHandler
			}
		}
		return nil
	}
}

// calls returns what handlers were called with since the last time, such as "a1", in order.
func (n *notes) calls() (names []string) {
	for {
		select {
		case d := <-n.started:
			names = append(names, fmt.Sprint(d.Payload.Key, d.Payload.N))
		default:
			return names
		}
	}
}

// tableOf is where a failed event waits.
func tableOf(park bool) string {
	return map[bool]string{false: "outbox.listeners", true: "outbox.parked"}[park]
}

// bothModes runs test for a leased and a transactional listener.
func bothModes(t *testing.T, test func(t *testing.T, transactional bool)) {
	t.Helper()
	for _, transactional := range []bool{false, true} {
		t.Run(fmt.Sprintf("transactional %t", transactional), func(t *testing.T) {
			t.Parallel()
			test(t, transactional)
		})
	}
}

// listenAs is listenTo or listenTx.
func listenAs(t testing.TB, pool *pgxpool.Pool, transactional bool, spec outbox.ListenerSpec, cfg outbox.ListenerConfig, h *notes) *outbox.Listener {
	t.Helper()
	if transactional {
		return listenTx(t, pool, spec, cfg, h)
	}
	return listenTo(t, pool, spec, cfg, h)
}

// said is the payload of the log topics of these tests: the Nth event of Key.
type said struct {
	Key string `json:"key"`
	N   int    `json:"n"`
}

var saidTopic = outbox.NewTopic[said](outbox.TopicSpec{
	Namespace: "test", Name: "said", Version: 1, Log: true,
	Keys: func(v any) outbox.Keys {
		n := v.(*said)
		return outbox.Keys{Partition: outbox.NewKey(outbox.StringPart("key", n.Key))}
	},
})

// looseTopic has no partition key.
var looseTopic = outbox.NewTopic[said](outbox.TopicSpec{Namespace: "test", Name: "loose", Version: 1, Log: true})

// notes is a handler that keeps what it got and fails as fail says.
type notes struct {
	mu   sync.Mutex
	got  []outbox.Delivery[said]
	fail func(d outbox.Delivery[said]) error // before it is kept
	told chan struct{}                       // holds one

	started chan outbox.Delivery[said] // what a handler was called with, as long as there is room
	hold    chan struct{}              // if set, handlers wait until it is closed or their contexts end
}

func newNotes() *notes {
	return &notes{told: make(chan struct{}, 1), started: make(chan outbox.Delivery[said], 1000)}
}

func (n *notes) handle(ctx context.Context, d outbox.Delivery[said]) error {
	return n.work(ctx, d, func() {})
}

// work is the handler. While it is held it calls busy now and then.
func (n *notes) work(ctx context.Context, d outbox.Delivery[said], busy func()) error {
	select {
	case n.started <- d:
	default:
	}
	if n.hold != nil {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for held := true; held; {
			select {
			case <-n.hold:
				held = false
			case <-tick.C:
				busy()
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
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
	if _, err := tx.Exec(ctx, effectSQL, d.ID, d.Payload.Key, d.Payload.N, d.Attempt); err != nil {
		return err
	}
	return n.work(ctx, d, func() { _, _ = tx.Exec(ctx, "SELECT 1") })
}

// effectSQL is what handlers with a transaction write.
const effectSQL = "INSERT INTO effects (event_id, key, n, attempt) VALUES ($1, $2, $3, $4)"

func makeEffects(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	execute(t, pool, `CREATE TABLE IF NOT EXISTS effects (no bigint GENERATED ALWAYS AS IDENTITY, event_id uuid NOT NULL, key text NOT NULL,
		n int NOT NULL, attempt int NOT NULL)`)
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
	timeout := time.After(patience)
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

// withLateRetries has what fails wait for retryNow, unless spec says more: a slow machine may drain for longer than a
// short back-off lasts.
func withLateRetries(spec outbox.ListenerSpec) outbox.ListenerSpec {
	if spec.Retry.BaseDelay == 0 {
		spec.Retry.BaseDelay, spec.Retry.MaxDelay = late.BaseDelay, late.MaxDelay
	}
	return spec
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
	l, err := outbox.NewListener(pool, withLateRetries(spec), cfg,
		outbox.Listen(saidTopic, h, h.handle), outbox.Listen(looseTopic, h, h.handle))
	require.NoError(t, err)
	return l
}

// listenTx is listenTo in transactional mode.
func listenTx(t testing.TB, pool *pgxpool.Pool, spec outbox.ListenerSpec, cfg outbox.ListenerConfig, h *notes) *outbox.Listener {
	t.Helper()
	return listenTxOn(t, pool, pool, spec, cfg, h)
}

// listenTxOn is listenTx with one pool for the table of effects, and another for the listener.
func listenTxOn(t testing.TB, setup, pool *pgxpool.Pool, spec outbox.ListenerSpec, cfg outbox.ListenerConfig, h *notes) *outbox.Listener {
	t.Helper()
	if spec.Name == "" {
		spec.Name = "ears"
	}
	if cfg.Logger == nil {
		cfg.Logger = quiet()
	}
	makeEffects(t, setup)
	l, err := outbox.NewListener(pool, withLateRetries(spec), cfg, outbox.ListenTx(saidTopic, h, h.handleTx))
	require.NoError(t, err)
	return l
}

// put1 commits one event.
func put1(t testing.TB, pool *pgxpool.Pool, key string, n int) {
	t.Helper()
	inTx(t, pool, func(tx pgx.Tx) {
		_, err := saidTopic.Untyped().Enqueue(t.Context(), tx, said{Key: key, N: n})
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
		_, err := saidTopic.Untyped().EnqueueMany(t.Context(), tx, ps)
		require.NoError(t, err)
	})
}

// crowd enqueues the events of several keys, which it numbers from 1.
type crowd struct{ last map[string]int }

func newCrowd(keys ...string) *crowd {
	c := &crowd{last: make(map[string]int)}
	for _, key := range keys {
		c.last[key] = 0
	}
	return c
}

// enqueue commits n events of random keys in one transaction.
func (c *crowd) enqueue(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	keys := slices.Sorted(maps.Keys(c.last))
	ps := make([]said, n)
	for i := range ps {
		key := keys[rand.IntN(len(keys))]
		c.last[key]++
		ps[i] = said{Key: key, N: c.last[key]}
	}
	inTx(t, pool, func(tx pgx.Tx) {
		_, err := saidTopic.Untyped().EnqueueMany(t.Context(), tx, ps)
		require.NoError(t, err)
	})
}

// inOrder demands that what was handled of each key is numbered from 1 without a gap or a repetition, and returns how
// many there are.
func (n *notes) inOrder(t testing.TB) int {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	last := make(map[string]int)
	for _, d := range n.got {
		require.Equal(t, last[d.Payload.Key]+1, d.Payload.N, "key %s", d.Payload.Key)
		last[d.Payload.Key]++
	}
	return len(n.got)
}

// disorder counts effects that come behind a later one of their key, by the first of each event.
const disorder = `SELECT count(*)::int FROM (
	SELECT f.n, max(f.n) OVER (PARTITION BY f.key ORDER BY f.no ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
	FROM (SELECT key, n, min(no) AS no FROM effects GROUP BY event_id, key, n) AS f
) AS o WHERE o.n < o.before`

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
	// What sync.OnceFunc calls must not fail the test: it would end the goroutine in it, and that is a panic.
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
