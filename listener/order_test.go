package listener_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// call is one call of a handler.
type call struct {
	Key        string
	N, Attempt int
}

// play determines which events the handlers of a listener fail, and how often. It records the calls.
type play struct {
	fails     map[runtimetest.Said]int  // failures before an event is done
	permanent map[runtimetest.Said]bool // the last of these failures

	mu      sync.Mutex
	busy    map[string]bool
	calls   []call
	overlap string // keys with two concurrent handlers
	after   int    // calls until stop
	stop    func()
}

func (p *play) handle(_ context.Context, d outbox.Delivery[runtimetest.Said]) error {
	p.begin(d)
	defer p.end(d)
	switch fails := p.fails[d.Payload]; {
	case d.Attempt == fails && p.permanent[d.Payload]:
		return outbox.Permanent(runtimetest.ErrHandler)
	case d.Attempt <= fails:
		return runtimetest.ErrHandler
	}
	return nil
}

func (p *play) handleTx(ctx context.Context, tx pgx.Tx, d outbox.Delivery[runtimetest.Said]) error {
	_, err := tx.Exec(ctx, "SELECT 1")
	return errors.Join(err, p.handle(ctx, d))
}

func (p *play) begin(d outbox.Delivery[runtimetest.Said]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy[d.Payload.Key] {
		p.overlap += d.Payload.Key
	}
	p.busy[d.Payload.Key] = true
	p.calls = append(p.calls, call{d.Payload.Key, d.Payload.N, d.Attempt})
	if p.after--; p.after == 0 {
		p.stop()
	}
}

func (p *play) end(d outbox.Delivery[runtimetest.Said]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy[d.Payload.Key] = false
}

// want returns the calls that must be made for an event.
func (p *play) want(e runtimetest.Said, limit int) (calls []call, dies bool) {
	last := p.fails[e] + 1
	if dies = p.permanent[e] || last > limit; dies {
		last = min(p.fails[e], limit)
	}
	for attempt := 1; attempt <= last; attempt++ {
		calls = append(calls, call{e.Key, e.N, attempt})
	}
	return calls, dies
}

// TestListenerCallsEachEventOfAKeyInTurn: in every mode, with any number of handlers and shards, and with graceful
// stops and other processes in between, the handlers of a key are called one after the other, in order. Each event is
// tried until it is done or dead, with its attempts numbered, and an event that is done is never repeated. A blocking
// listener with one handler at a time keeps the order of the log.
func TestListenerCallsEachEventOfAKeyInTurn(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		const limit = 3
		spec := listener.Spec{
			Name: fmt.Sprintf("ears%d", round), Latest: true, Retry: outbox.Retry{MaxAttempts: limit},
			ParkKeys: rapid.Bool().Draw(rt, "park"), Shards: rapid.IntRange(1, 3).Draw(rt, "shards"),
		}
		transactional := rapid.IntRange(0, 3).Draw(rt, "mode") == 0
		if !transactional {
			spec.Concurrency = rapid.IntRange(1, 6).Draw(rt, "concurrency")
		}
		cfg := listener.Config{BatchSize: rapid.IntRange(1, 20).Draw(rt, "batch"), Logger: runtimetest.DiscardLogger()}
		room := rapid.IntRange(1, 4).Draw(rt, "keys that may be parked")
		p := &play{fails: make(map[runtimetest.Said]int), permanent: make(map[runtimetest.Said]bool), busy: make(map[string]bool)}
		open := func() *listener.Listener {
			handler := listener.Handle(runtimetest.SaidTopic, p, p.handle)
			if transactional {
				handler = listener.HandleTx(runtimetest.SaidTopic, p, p.handleTx)
			}
			l, err := listener.New(pool, spec, cfg, handler)
			require.NoError(rt, err)
			listener.LimitParkedKeys(l, room)
			return l
		}
		l := open()
		_, err := l.Drain(t.Context())
		require.NoError(rt, err)

		var events []runtimetest.Said
		last := make(map[string]int)
		for range rapid.IntRange(1, 40).Draw(rt, "events") {
			key := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(rt, "key")
			last[key]++
			e := runtimetest.Said{Key: key, N: last[key]}
			events = append(events, e)
			p.fails[e] = max(rapid.IntRange(-6, limit).Draw(rt, "fails"), 0)
			p.permanent[e] = p.fails[e] > 0 && rapid.IntRange(0, 3).Draw(rt, "permanent") == 0
		}
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			_, err := runtimetest.SaidTopic.EnqueueMany(t.Context(), tx, events)
			require.NoError(rt, err)
		})
		var want []call
		deaths := 0
		for _, e := range events {
			calls, dies := p.want(e, limit)
			want = append(want, calls...)
			if dies {
				deaths++
			}
		}

		for leases := 0; len(p.calls) < len(want); leases++ {
			require.Less(rt, leases, 2*len(want)+100)
			ctx, cancel := context.WithCancel(t.Context())
			p.after, p.stop = rapid.IntRange(0, 15).Draw(rt, "calls before a stop"), cancel
			_, err := l.Drain(ctx)
			cancel()
			if err != nil {
				require.ErrorIs(rt, err, context.Canceled)
			}
			if rapid.Bool().Draw(rt, "another process") {
				l = open()
			}
			runtimetest.RetryNow(t, pool)
		}
		report, err := l.Drain(t.Context())
		require.NoError(rt, err)
		require.Zero(rt, report)
		require.Empty(rt, p.overlap)
		for key := range last {
			require.Equal(rt, only(want, key), only(p.calls, key))
		}
		if spec.Concurrency == 1 && spec.Shards == 1 && !spec.ParkKeys {
			require.Equal(rt, want, p.calls)
		}
		require.Equal(rt, deaths, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM outbox.dead_letters WHERE listener = $1", spec.Name))
		require.Zero(rt, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM outbox.parked"))
		pgtest.Execute(t, pool, "DELETE FROM outbox.listeners")
	})
}

// only returns the calls of one key.
func only(calls []call, key string) []call {
	return slices.DeleteFunc(slices.Clone(calls), func(c call) bool { return c.Key != key })
}
