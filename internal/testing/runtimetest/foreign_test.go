package runtimetest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// wild is the payload of these tests. If Wrong is set, the code that handles it misbehaves.
type wild struct {
	N     int    `json:"n"`
	Wrong string `json:"wrong,omitempty"` // place and misdeed
}

// misdeeds are the things that user code may do instead of returning, with what the error of its event must say.
var misdeeds = map[string]struct {
	do     func()
	reason string
}{
	"panic":  {func() { panic(errors.New("boom")) }, "panicked: boom"},
	"nil":    {func() { _ = (*wildError)(nil).place }, "nil pointer dereference"},
	"goexit": {runtime.Goexit, "called runtime.Goexit"},
	"hang":   {func() { <-runtimetest.Hung }, "did not return within"},
}

// at misbehaves if place is the place of w's misdeed.
func (w wild) at(place string) {
	if where, what, ok := strings.Cut(w.Wrong, " "); ok && where == place {
		if release, there := releases.Load(w.N); there && what == "hang" {
			release.(*wildHang).wait()
			return
		}
		misdeeds[what].do()
	}
}

// wildHang is a call that hangs until its test is over.
type wildHang struct{ begun, release chan struct{} }

func (h *wildHang) wait() {
	close(h.begun)
	<-h.release
}

// releases holds the hanging calls by the number of their event.
var releases sync.Map

func (w *wild) UnmarshalJSON(text []byte) error {
	type plain wild
	if err := json.Unmarshal(text, (*plain)(w)); err != nil {
		return err
	}
	w.at("payload")
	return nil
}

// wildError is the error of an event that has a Wrong. Its methods misbehave accordingly.
type wildError struct{ place wild }

func (e *wildError) Error() string {
	e.place.at("Error")
	return "it failed"
}

func (e *wildError) Unwrap() error {
	e.place.at("Unwrap")
	return nil
}

func (e *wildError) Is(error) bool {
	e.place.at("Is")
	return false
}

func (e *wildError) As(any) bool {
	e.place.at("As")
	return false
}

// wildLogger does one of the misdeeds at each line, but hangs only once.
type wildLogger struct{ lines *atomic.Int64 }

func (l wildLogger) Enabled(context.Context, slog.Level) bool {
	switch n := l.lines.Add(1); {
	case n == 3:
		misdeeds["hang"].do()
	case n%2 == 0:
		misdeeds["panic"].do()
	}
	return true
}

func (l wildLogger) Handle(context.Context, slog.Record) error {
	misdeeds["goexit"].do()
	return nil
}
func (l wildLogger) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l wildLogger) WithGroup(string) slog.Handler      { misdeeds["nil"].do(); return l }

// wildObserver does one of the misdeeds at each call, and hangs once.
func wildObserver() *outbox.Observer {
	var calls atomic.Int64
	misbehave := func() {
		switch n := calls.Add(1); {
		case n == 20:
			misdeeds["hang"].do()
		case n%3 == 0:
			misdeeds["panic"].do()
		case n%3 == 1:
			misdeeds["nil"].do()
		default:
			misdeeds["goexit"].do()
		}
	}
	return &outbox.Observer{
		Claimed:  func(outbox.Runner, []outbox.Event, time.Duration) { misbehave() },
		Started:  func(context.Context, outbox.Runner, []outbox.Event) { misbehave() },
		Finished: func(context.Context, outbox.Runner, []outbox.Event, []error, time.Duration) { misbehave() },
		Settled:  func(outbox.Runner, outbox.Event, outbox.Settlement) { misbehave() },
		Lost:     func(outbox.Runner, outbox.Event) { misbehave() },
		Dead:     func(outbox.Runner, outbox.Event, error) { misbehave() },
		Resting:  func(outbox.Runner, string, error) { misbehave() },
		Resumed:  func(outbox.Runner, string, time.Duration) { misbehave() },
	}
}

// wildTopic has an order by key, and each event is a key.
func wildTopic(log bool) outbox.Topic[wild] {
	return outbox.NewTopic[wild](outbox.TopicSpec{
		Namespace: "test", Name: "wild", Version: 1, Log: log, Retry: outbox.Retry{MaxAttempts: 1},
		Keys: func(v any) outbox.Keys {
			w := v.(*wild)
			return outbox.Keys{Partition: eventkey.NewKey(eventkey.StringPart("key", fmt.Sprint("k", w.N)))}
		},
	})
}

// wildHandlers handle or publish events, and record those that do not misbehave.
type wildHandlers struct {
	mu   sync.Mutex
	seen map[int]bool
	want int
	told chan struct{} // closed when the wanted number has been seen
}

func (h *wildHandlers) handle(_ context.Context, d outbox.Delivery[wild]) error {
	return h.one(d.Payload)
}

func (h *wildHandlers) handleTx(_ context.Context, _ pgx.Tx, d outbox.Delivery[wild]) error {
	return h.one(d.Payload)
}

func (h *wildHandlers) one(w wild) error {
	switch w.at("handler"); w.Wrong {
	case "":
	case "typed nil":
		return (*wildError)(nil)
	default:
		return &wildError{w}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen[w.N] = true; len(h.seen) == h.want {
		close(h.told)
		h.want = -1
	}
	return nil
}

// Publish implements publish.Publisher.
func (h *wildHandlers) Publish(_ context.Context, events []publish.Outgoing) []error {
	errs := make([]error, len(events))
	for i, e := range events {
		type plain wild
		var w plain
		if err := json.Unmarshal(e.Payload, &w); err != nil {
			panic(err)
		}
		errs[i] = h.one(wild(w))
	}
	return errs
}

var wildPublication = publish.Publication{
	Broker: "kafka", Destination: "sc.wild",
	Key: func(v any) eventkey.Key {
		w := v.(*wild)
		w.at("key")
		return eventkey.NewKey(eventkey.StringPart("key", fmt.Sprint("k", w.N)))
	},
	Headers: func(v any) map[string]string {
		v.(*wild).at("headers")
		return nil
	},
}

var wildRunners = map[string]struct {
	log, publishes bool
	make           func(t *testing.T, pool *pgxpool.Pool, log *slog.Logger, h *wildHandlers) runtimetest.Runner
}{
	"dispatcher": {false, false, func(t *testing.T, pool *pgxpool.Pool, log *slog.Logger, h *wildHandlers) runtimetest.Runner {
		cfg := queue.Config{Logger: log, ShutdownTimeout: time.Millisecond, Observer: wildObserver()}
		return runtimetest.Dispatcher(t, pool, cfg, queue.Handle(wildTopic(false), h, h.handle))
	}},
	"publishing dispatcher": {false, true, func(t *testing.T, pool *pgxpool.Pool, log *slog.Logger, h *wildHandlers) runtimetest.Runner {
		cfg := queue.Config{Logger: log, ShutdownTimeout: time.Millisecond, Observer: wildObserver(), Breaker: outbox.Breaker{Failures: -1}}
		cfg.Publishers = map[string]publish.Publisher{"kafka": h}
		return runtimetest.Dispatcher(t, pool, cfg, queue.Publish(wildTopic(false), wildPublication))
	}},
	"leased listener": {true, false, func(t *testing.T, pool *pgxpool.Pool, log *slog.Logger, h *wildHandlers) runtimetest.Runner {
		return wildListener(t, pool, 3, log, h, listener.Handle(wildTopic(true), h, h.handle))
	}},
	"transactional listener": {true, false, func(t *testing.T, pool *pgxpool.Pool, log *slog.Logger, h *wildHandlers) runtimetest.Runner {
		return wildListener(t, pool, 1, log, h, listener.HandleTx(wildTopic(true), h, h.handleTx))
	}},
	"publishing listener": {true, true, func(t *testing.T, pool *pgxpool.Pool, log *slog.Logger, h *wildHandlers) runtimetest.Runner {
		return wildListener(t, pool, 1, log, h, listener.Publish(wildTopic(true), wildPublication))
	}},
}

func wildListener(t *testing.T, pool *pgxpool.Pool, concurrency int, log *slog.Logger, h *wildHandlers, topic listener.Handler) runtimetest.Runner {
	l, err := listener.New(pool, listener.Spec{Name: "wild", Concurrency: concurrency, Retry: outbox.Retry{MaxAttempts: 1}},
		listener.Config{
			Logger: log, ShutdownTimeout: time.Millisecond, Observer: wildObserver(), Publishers: map[string]publish.Publisher{"kafka": h}, Breaker: outbox.Breaker{Failures: -1},
		}, topic)
	require.NoError(t, err)
	return l
}

// TestForeignCodeIsContained: whatever a handler, a publisher, a codec, a key, headers, the methods of a returned error,
// an observer or a logger do to one event, the process survives, the other events are delivered, and the error of that event says
// what happened.
func TestForeignCodeIsContained(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const good = 20
	for name, runner := range wildRunners {
		for _, how := range []string{"Run", "Drain"} {
			t.Run(name+"/"+how, func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Database(t)
				reasons := map[string]string{"typed nil": "nil pointer dereference"} // by kind of misdeed
				places := []string{"handler", "payload", "Error", "Unwrap", "Is", "As", "key", "headers"}
				for _, place := range places {
					for what, misdeed := range misdeeds {
						inPublication := place == "key" || place == "headers"
						// A handler, and its payload's codec, may take as long as they like.
						endless := what == "hang" && (place == "handler" || place == "payload" && !runner.publishes)
						if !endless && (runner.publishes || !inPublication) {
							reasons[place+" "+what] = misdeed.reason
						}
					}
				}
				h := &wildHandlers{seen: make(map[int]bool), want: good, told: make(chan struct{})}
				r := runner.make(t, pool, slog.New(wildLogger{new(atomic.Int64)}), h)
				pgtest.InTx(t, pool, func(tx pgx.Tx) {
					n := 0
					for _, wrong := range append(slices.Sorted(maps.Keys(reasons)), make([]string, good)...) {
						n++
						_, err := wildTopic(runner.log).Untyped().Enqueue(t.Context(), tx, wild{N: n, Wrong: wrong})
						require.NoError(t, err)
					}
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				over := make(chan error, 1)
				go func() {
					if how == "Run" {
						over <- r.Run(ctx)
						return
					}
					report, err := r.Drain(ctx)
					if report.Delivered != good || report.Dead != len(reasons) {
						err = fmt.Errorf("the drain reports %+v of %d and %d: %w", report, good, len(reasons), err)
					}
					over <- err
				}()
				dead := "FROM testing.events WHERE status = 'dead'"
				if runner.log {
					dead = "FROM outbox.dead_letters"
				}
				if how == "Run" {
					pgtest.Receive(t, h.told, "the other events")
					pgtest.Settles(t, pool, len(reasons), "SELECT count(*) "+dead)
					cancel()
				}
				require.NoError(t, pgtest.Receive(t, over, "the end"))
				require.Len(t, h.seen, good)
				told := pgtest.Value[map[string]string](t, pool, "SELECT jsonb_object_agg(payload->>'wrong', "+
					map[bool]string{true: "error", false: "last_error"}[runner.log]+") "+dead)
				for wrong, reason := range reasons {
					require.Contains(t, told[wrong], reason, wrong)
				}
			})
		}
	}
}

// TestHangingHandlerBlocksOnlyItself: a handler or publisher of one event never returns. The other events are
// delivered, and the stop is bounded and names the event. The call returns later, when the tests are over.
func TestHangingHandlerBlocksOnlyItself(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, place := range []string{"handler", "payload"} {
		for name, runner := range wildRunners {
			if runner.publishes && place == "payload" {
				continue
			}
			for _, how := range []string{"Run", "Drain"} {
				t.Run(name+"/"+place+"/"+how, func(t *testing.T) {
					t.Parallel()
					pool := pgtest.Database(t)
					h := &wildHandlers{seen: make(map[int]bool), want: 5, told: make(chan struct{})}
					r := runner.make(t, pool, runtimetest.DiscardLogger(), h)
					last := rand.IntN(1<<50) + 5
					hang := &wildHang{make(chan struct{}), make(chan struct{})}
					releases.Store(last, hang)
					t.Cleanup(func() { close(hang.release) })
					pgtest.InTx(t, pool, func(tx pgx.Tx) {
						for n := range 6 { // the last one hangs, because a transaction or a call handles one after the other
							w := wild{N: n}
							if n == 5 {
								w = wild{N: last, Wrong: place + " hang"}
							}
							_, err := wildTopic(runner.log).Untyped().Enqueue(t.Context(), tx, w)
							require.NoError(t, err)
						}
					})
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					over := make(chan error, 1)
					go func() {
						err := error(nil)
						if how == "Run" {
							err = r.Run(ctx)
						} else {
							_, err = r.Drain(ctx)
						}
						over <- err
					}()
					pgtest.Receive(t, h.told, "the other events")
					pgtest.Receive(t, hang.begun, "the one that hangs")
					cancel()
					err := pgtest.Receive(t, over, "the end")
					require.ErrorContains(t, err, "still running")
					require.ErrorContains(t, err, "test/wild")
				})
			}
		}
	}
}

// panics is a payload whose code panics at Where.
type panics struct{ Where string }

func (p panics) MarshalJSON() ([]byte, error) {
	p.at("encoding the payload")
	return []byte("{}"), nil
}

func (p panics) Validate() error {
	p.at("Validate")
	return nil
}

func (p panics) at(where string) {
	if p.Where == where {
		panic("boom")
	}
}

// TestEnqueueSurvivesCodeOfItsTopic: a panic in the topic's code is an error of the call, and nothing is sent.
func TestEnqueueSurvivesCodeOfItsTopic(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := outbox.NewTopic[panics](outbox.TopicSpec{
		Namespace: "test", Name: "panics",
		Keys: func(v any) outbox.Keys {
			p := v.(*panics)
			p.at("Keys")
			return outbox.Keys{}
		},
	})
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		for _, where := range []string{"Validate", "Keys", "encoding the payload"} {
			_, err := topic.Enqueue(t.Context(), tx, panics{where})
			require.ErrorContains(t, err, "enqueue test/panics: "+where+" panicked: boom")
			_, err = topic.EnqueueMany(t.Context(), tx, []panics{{}, {where}})
			require.ErrorContains(t, err, where+" panicked: boom")
			_, err = topic.EnqueueInBatch(&pgx.Batch{}, panics{where})
			require.ErrorContains(t, err, where+" panicked: boom")
		}
		_, err := topic.Enqueue(t.Context(), tx, panics{}, func() outbox.EnqueueOption { return nil }())
		require.ErrorContains(t, err, "option 1 of 1 is nil")
	})
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM testing.events"))
}
