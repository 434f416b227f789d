package listener_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// orderly is a publisher that keeps its contract: it sends nothing after a failure of the same key.
type orderly struct {
	refused func(runtimetest.Said) bool // permanently
	fails   func(runtimetest.Said) bool // once

	mu      sync.Mutex
	failed  map[runtimetest.Said]bool
	arrived []runtimetest.Said
	calls   []int         // how many events each had
	left    int           // events that have not arrived
	all     chan struct{} // closed when all have arrived
}

// Publish implements publish.Publisher.
func (o *orderly) Publish(_ context.Context, events []publish.Outgoing) []error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls = append(o.calls, len(events))
	stopped := make(map[string]bool)
	errs := make([]error, len(events))
	for i, e := range events {
		var s runtimetest.Said
		if err := json.Unmarshal(e.Payload, &s); err != nil {
			panic(err)
		}
		switch {
		case stopped[e.Key]:
			errs[i] = outbox.ErrBehind
		case o.refused(s):
			errs[i] = outbox.Permanent(errors.New("too large"))
		case o.fails(s) && !o.failed[s]:
			errs[i], o.failed[s] = errors.New("try again"), true
		default:
			o.arrived = append(o.arrived, s)
			if o.left--; o.left == 0 {
				close(o.all)
			}
		}
		stopped[e.Key] = errs[i] != nil
	}
	return errs
}

// TestListenerPublishesInOrderPastDeadLetters: a lease makes several calls of the Publisher, and in one of them an
// event becomes a dead letter. The other events arrive, in the order of their keys.
func TestListenerPublishesInOrderPastDeadLetters(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, c := range map[string]struct {
		keys, each int
		refused    func(runtimetest.Said) bool
		fails      func(runtimetest.Said) bool
	}{
		"one key": {
			keys: 1, each: 3600, // calls of 2,000 events at most
			refused: func(s runtimetest.Said) bool {
				return s.N == 11 || s.N == 250 || s.N == 251 || s.N == 1999 || s.N == 2200
			},
			fails: func(s runtimetest.Said) bool { return s.N == 700 },
		},
		"twenty keys": {
			keys: 20, each: 200, // 100 of each in a call
			refused: func(s runtimetest.Said) bool { return s.N == 11 || s.N == 40 && s.Key > "k10" || s.N == 75 },
			fails:   func(s runtimetest.Said) bool { return s.N == 15 && s.Key > "k15" },
		},
	} {
		for mode, park := range map[string]bool{"block": false, "park_key": true} {
			for _, batch := range []int{0, 4000} {
				t.Run(fmt.Sprintf("%s/%s/batch %d", name, mode, batch), func(t *testing.T) {
					t.Parallel()
					pool := pgtest.Database(t)
					var events []runtimetest.Said
					dead := 0
					for n := range c.each {
						for k := range c.keys {
							s := runtimetest.Said{Key: fmt.Sprintf("k%02d", k), N: n + 1}
							if events = append(events, s); c.refused(s) {
								dead++
							}
						}
					}
					pgtest.InTx(t, pool, func(tx pgx.Tx) {
						_, err := runtimetest.SaidTopic.EnqueueMany(t.Context(), tx, events)
						require.NoError(t, err)
					})
					o := &orderly{
						refused: c.refused, fails: c.fails, failed: make(map[runtimetest.Said]bool), left: len(events) - dead, all: make(chan struct{}),
					}
					l, err := listener.New(pool, listener.Spec{
						Name: "relay", ParkKeys: park, Retry: outbox.Retry{MaxAttempts: 5, BaseDelay: time.Millisecond, MaxDelay: 10 * time.Millisecond},
					}, listener.Config{
						BatchSize: batch, Logger: runtimetest.DiscardLogger(), Publishers: map[string]publish.Publisher{"kafka": o},
					}, listener.Publish(runtimetest.SaidTopic, publish.Publication{Broker: "kafka", Destination: "sc.said"}))
					require.NoError(t, err)
					stop := runtimetest.StartListener(t, l)
					pgtest.Receive(t, o.all, "all events")
					pgtest.Settles(t, pool, dead, "SELECT count(*) FROM outbox.dead_letters")
					stop()

					last := make(map[string]int)
					for _, s := range o.arrived {
						for last[s.Key]++; c.refused(runtimetest.Said{Key: s.Key, N: last[s.Key]}); {
							last[s.Key]++
						}
						require.Equal(t, last[s.Key], s.N, "the next of key %s", s.Key)
					}
					require.Len(t, o.arrived, len(events)-dead)
					require.Equal(t, 0, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.parked"))
					require.Equal(t, dead, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters WHERE error = 'too large'"))
					if batch > 2000 {
						require.Equal(t, 2000, o.calls[0], "a lease of several calls")
					}
				})
			}
		}
	}
}
