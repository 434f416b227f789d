package runtimetest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/payload"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/seal"
)

// canary is in every sealed value of these tests, and must not be seen anywhere.
const canary = "canary"

type paid struct {
	ShopID uuid.UUID `json:"shop_id"`
	Name   string    `json:"name"`
	Card   string    `json:"card" outbox:"sealed"`
	Cents  int64     `json:"cents" outbox:"sealed"`
}

type paidV1 struct {
	ShopID uuid.UUID `json:"shop_id"`
	Name   string    `json:"name"`
	Card   string    `json:"card" outbox:"sealed"`
}

// sealedSpec is a topic with sealed fields, or sealed as a whole.
func sealedSpec(log, whole bool) outbox.TopicSpec {
	sealed := outbox.SealedFields()
	if whole {
		sealed = outbox.SealedPayload()
	}
	return outbox.TopicSpec{
		Namespace: "shop", Name: "paid", Strict: true, Log: log, Sealed: sealed, Retry: outbox.Retry{MaxAttempts: 3},
		Keys: func(p any) outbox.Keys {
			return outbox.Keys{TenantID: outbox.Tenant(p.(*paid).ShopID), Partition: eventkey.NewKey(eventkey.StringPart("name", p.(*paid).Name))}
		},
	}
}

func newPaid(tenant uuid.UUID, name string) paid {
	return paid{ShopID: tenant, Name: name, Card: canary + " " + name, Cents: 4242424242}
}

func ringOf(t testing.TB, ids ...string) *seal.Ring {
	t.Helper()
	var keys []*seal.Key
	for _, id := range ids {
		k, err := seal.NewKey(id, []byte(strings.Repeat(id, seal.KeyBytes)[:seal.KeyBytes]))
		require.NoError(t, err)
		keys = append(keys, k)
	}
	r, err := seal.NewRing(keys[0], keys[1:]...)
	require.NoError(t, err)
	return r
}

// enqueueSealed enqueues a payload whose values are sealed by k.
func enqueueSealed[P any](t testing.TB, pool *pgxpool.Pool, k seal.Keyring, topic outbox.Topic[P], p P) uuid.UUID {
	t.Helper()
	var r outbox.Receipt
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
		r, err = topic.Enqueue(seal.ContextWithKeyring(t.Context(), k), tx, p)
		return err
	}))
	return r.ID
}

// switchable is a keyring that a test changes.
type switchable struct {
	mu sync.Mutex
	k  seal.Keyring
}

func (s *switchable) set(k seal.Keyring) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.k = k
}

func (s *switchable) get() seal.Keyring {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.k
}

func (s *switchable) SealingKey(ctx context.Context, tenant uuid.NullUUID) (*seal.Key, error) {
	return s.get().SealingKey(ctx, tenant)
}

func (s *switchable) OpeningKey(ctx context.Context, tenant uuid.NullUUID, id string) (*seal.Key, error) {
	return s.get().OpeningKey(ctx, tenant, id)
}

// heard is what handlers and publishers of a test get.
type heard struct {
	mu       sync.Mutex
	payloads []paid
	sent     []publish.Outgoing
	ctxs     []context.Context
	latest   time.Time // when the latest call began
	told     chan struct{}
	fail     error
}

func newHeard() *heard { return &heard{told: make(chan struct{}, 1000)} }

func (h *heard) take(ctx context.Context, ps ...paid) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.payloads, h.ctxs, h.latest = append(h.payloads, ps...), append(h.ctxs, ctx), time.Now()
	for range ps {
		h.told <- struct{}{}
	}
	return h.fail
}

func (h *heard) names() (names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.payloads {
		names = append(names, p.Name)
	}
	return names
}

func (h *heard) one(ctx context.Context, d outbox.Delivery[paid]) error {
	return h.take(ctx, d.Payload)
}

func (h *heard) oneTx(ctx context.Context, _ pgx.Tx, d outbox.Delivery[paid]) error {
	return h.take(ctx, d.Payload)
}

func (h *heard) many(ctx context.Context, ds []outbox.Delivery[paid]) error {
	var ps []paid
	for _, d := range ds {
		ps = append(ps, d.Payload)
	}
	return h.take(ctx, ps...)
}

func (h *heard) manyTx(ctx context.Context, _ pgx.Tx, ds []outbox.Delivery[paid]) error {
	return h.many(ctx, ds)
}

func (h *heard) Publish(_ context.Context, events []publish.Outgoing) []error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.latest = time.Now()
	for _, e := range events {
		h.sent = append(h.sent, e)
		h.told <- struct{}{}
	}
	return make([]error, len(events))
}

// machine is one of the ways in which events reach code.
type machine struct {
	log, publishes bool
	run            func(t testing.TB, pool *pgxpool.Pool, k seal.Keyring, logger *slog.Logger, spec outbox.TopicSpec, h *heard) opener
}

type opener interface {
	Run(ctx context.Context) error
	Drain(ctx context.Context) (queue.Report, error)
}

var quickBreaker = outbox.Breaker{FirstPause: time.Millisecond, MaxPause: 5 * time.Millisecond}

func dispatcherOf(handler func(outbox.TopicSpec, *heard) queue.Handler) func(testing.TB, *pgxpool.Pool, seal.Keyring, *slog.Logger, outbox.TopicSpec, *heard) opener {
	return func(t testing.TB, pool *pgxpool.Pool, k seal.Keyring, logger *slog.Logger, spec outbox.TopicSpec, h *heard) opener {
		cfg := runtimetest.QuickConfig()
		cfg.Keyring, cfg.Breaker, cfg.Logger, cfg.Publishers = k, quickBreaker, logger, map[string]publish.Publisher{"kafka": h}
		d, err := queue.NewDispatcher(pool, cfg, handler(spec, h))
		require.NoError(t, err)
		return d
	}
}

func listenerOf(size int, handler func(outbox.TopicSpec, *heard) listener.Handler) func(testing.TB, *pgxpool.Pool, seal.Keyring, *slog.Logger, outbox.TopicSpec, *heard) opener {
	return func(t testing.TB, pool *pgxpool.Pool, k seal.Keyring, logger *slog.Logger, spec outbox.TopicSpec, h *heard) opener {
		own := listener.Spec{Name: "ear", Retry: spec.Retry, Batch: outbox.Batch{Size: size}}
		if len(spec.Limits) > 0 { // of a queue topic; a listener has a rate of its own
			own.Rate, spec.Limits = spec.Limits[0].Rate, nil
		}
		l, err := listener.New(pool, own,
			listener.Config{Keyring: k, Breaker: quickBreaker, Logger: logger, PollInterval: 20 * time.Millisecond, Publishers: map[string]publish.Publisher{"kafka": h}},
			handler(spec, h))
		require.NoError(t, err)
		return l
	}
}

// publication has a key, so that a publisher looks into the payload.
var publication = publish.Publication{
	Broker: "kafka", Destination: "paid",
	Key: func(p any) eventkey.Key { return eventkey.NewKey(eventkey.StringPart("name", p.(*paid).Name)) },
}

func topicOf(spec outbox.TopicSpec) outbox.Topic[paid] { return outbox.NewTopic[paid](spec) }

var machines = map[string]machine{
	"queue": {run: dispatcherOf(func(s outbox.TopicSpec, h *heard) queue.Handler { return queue.Handle(topicOf(s), h, h.one) })},
	"queue, batch": {run: dispatcherOf(func(s outbox.TopicSpec, h *heard) queue.Handler {
		s.Batch = outbox.Batch{Size: 10}
		return queue.HandleBatch(topicOf(s), h, h.many)
	})},
	"queue, publisher": {publishes: true, run: dispatcherOf(func(s outbox.TopicSpec, h *heard) queue.Handler { return queue.Publish(topicOf(s), publication) })},
	"listener":         {log: true, run: listenerOf(0, func(s outbox.TopicSpec, h *heard) listener.Handler { return listener.Handle(topicOf(s), h, h.one) })},
	"listener, batch": {log: true, run: listenerOf(10, func(s outbox.TopicSpec, h *heard) listener.Handler {
		return listener.HandleBatch(topicOf(s), h, h.many)
	})},
	"listener, transactional": {log: true, run: listenerOf(0, func(s outbox.TopicSpec, h *heard) listener.Handler {
		return listener.HandleTx(topicOf(s), h, h.oneTx)
	})},
	"listener, transactional batch": {log: true, run: listenerOf(10, func(s outbox.TopicSpec, h *heard) listener.Handler {
		return listener.HandleTxBatch(topicOf(s), h, h.manyTx)
	})},
	"listener, publisher": {log: true, publishes: true, run: listenerOf(0, func(s outbox.TopicSpec, h *heard) listener.Handler { return listener.Publish(topicOf(s), publication) })},
}

func eachMachine(t *testing.T, test func(t *testing.T, m machine)) {
	t.Parallel()
	for name, m := range machines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, m)
		})
	}
}

// nothingShows fails if the canary is in any table, or in log.
func nothingShows(t testing.TB, pool *pgxpool.Pool, log string) {
	t.Helper()
	require.NotContains(t, log, canary)
	require.NotContains(t, log, "4242424242")
	dump := pgtest.Value[string](t, pool, `SELECT coalesce(string_agg(x.t, ' '), '') FROM (
		SELECT e::text AS t FROM outbox.events AS e UNION ALL SELECT e::text FROM outbox.queue AS e UNION ALL
		SELECT e::text FROM outbox.delivered AS e UNION ALL SELECT e::text FROM outbox.log AS e UNION ALL
		SELECT e::text FROM outbox.dead_letters AS e UNION ALL SELECT e::text FROM outbox.parked AS e UNION ALL
		SELECT e::text FROM outbox.listeners AS e) AS x`)
	require.NotContains(t, dump, canary)
	require.NotContains(t, dump, "4242424242")
	require.NotContains(t, dump, "Y2FuYXJ5")
}

// TestSealedReachesHandlers: a handler gets what was enqueued, opened, and a context that seals what it enqueues; a
// publisher forwards the sealed form without a key. Nothing shows the value.
func TestSealedReachesHandlers(t *testing.T) {
	eachMachine(t, func(t *testing.T, m machine) {
		for _, whole := range []bool{false, true} {
			if whole && m.publishes {
				continue // TestSealedWholeIsForwarded
			}
			pool := pgtest.Plain(t)
			keys, h, spec := ringOf(t, "k1"), newHeard(), sealedSpec(m.log, whole)
			tenant := uuid.New()
			log := runtimetest.NewLogSpy()
			logger := log.Logger()
			enqueueSealed(t, pool, keys, topicOf(spec), newPaid(tenant, "a"))
			enqueueSealed(t, pool, keys, topicOf(spec), newPaid(tenant, "b"))
			k := seal.Keyring(keys)
			if m.publishes {
				k = nil
			}
			report, err := m.run(t, pool, k, logger, spec, h).Drain(t.Context())
			require.NoError(t, err)
			require.Equal(t, 2, report.Delivered, "%+v\n%s", report, log.String())
			nothingShows(t, pool, log.String())
			if m.publishes {
				require.Len(t, h.sent, 2)
				for _, e := range h.sent {
					require.Contains(t, string(e.Payload), `"sealed:v1:k1:`)
					require.NotContains(t, string(e.Payload), canary)
					require.Contains(t, []string{"a", "b"}, e.Key)
				}
				continue
			}
			require.ElementsMatch(t, []paid{newPaid(tenant, "a"), newPaid(tenant, "b")}, h.payloads)
			require.Equal(t, keys, seal.KeyringFromContext(h.ctxs[0]))
		}
	})
}

// TestSealedWaitsForItsKey: an event whose key is not there waits, with no attempt counted. The log names the key. Other
// events of a queue go on. When the key is there, so does the event.
func TestSealedWaitsForItsKey(t *testing.T) {
	eachMachine(t, func(t *testing.T, m machine) {
		if m.publishes {
			t.Log("a publisher needs no key")
			return
		}
		pool := pgtest.Plain(t)
		keys, h, spec := &switchable{k: ringOf(t, "k1")}, newHeard(), sealedSpec(m.log, false)
		tenant := uuid.New()
		log := runtimetest.NewLogSpy()
		enqueueSealed(t, pool, ringOf(t, "k2"), topicOf(spec), newPaid(tenant, "a"))
		enqueueSealed(t, pool, ringOf(t, "k1"), topicOf(spec), newPaid(tenant, "b"))
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan error, 1)
		r := m.run(t, pool, keys, log.Logger(), spec, h)
		go func() { over <- r.Run(ctx) }()
		log.Await(t, "sealed with key k2: the keyring has no such key")
		if !m.log {
			pgtest.Receive(t, h.told, "an event")
			require.Equal(t, []string{"b"}, h.names(), "it does not wait for the other")
		}
		require.Zero(t, pgtest.Count(t, pool, "SELECT (SELECT count(*) FROM outbox.queue WHERE failures IS NOT NULL) + (SELECT count(*) FROM outbox.dead_letters)"))
		keys.set(ringOf(t, "k1", "k2"))
		for len(h.names()) < 2 {
			pgtest.Receive(t, h.told, "an event")
		}
		require.ElementsMatch(t, []string{"a", "b"}, h.names())
		pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.queue")
		stop()
		require.NoError(t, pgtest.Receive(t, over, "the end of Run"))
		require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.delivered WHERE attempts <> 1"), "no attempt was charged")
		nothingShows(t, pool, log.String())
	})
}

// TestSealedNeverOpens: a value that was altered or moved, and one whose key was destroyed, are dead letters at once.
func TestSealedNeverOpens(t *testing.T) {
	eachMachine(t, func(t *testing.T, m machine) {
		if m.publishes {
			t.Log("a publisher opens nothing")
			return
		}
		pool := pgtest.Plain(t)
		keys, h, spec := ringOf(t, "k1"), newHeard(), sealedSpec(m.log, false)
		tenant := uuid.New()
		table := "events"
		if m.log {
			table = "log"
		}
		moved := enqueueSealed(t, pool, keys, topicOf(spec), newPaid(tenant, "moved"))
		open := enqueueSealed(t, pool, keys, topicOf(spec), newPaid(tenant, "open"))
		from := enqueueSealed(t, pool, keys, topicOf(spec), newPaid(tenant, "fine"))
		pgtest.Execute(t, pool, fmt.Sprintf(`UPDATE outbox.%[1]s SET payload = payload || jsonb_build_object('card', (SELECT payload -> 'card' FROM outbox.%[1]s WHERE id = '%[2]s'))
			WHERE id = '%[3]s'`, table, from, moved))
		pgtest.Execute(t, pool, fmt.Sprintf(`UPDATE outbox.%s SET payload = payload || '{"card": "canary"}' WHERE id = '%s'`, table, open))
		log := runtimetest.NewLogSpy()
		report, err := m.run(t, pool, keys, log.Logger(), spec, h).Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"fine"}, h.names())
		require.Equal(t, 2, report.Dead)
		require.Equal(t, []string{
			"open payload: field card: it does not open with key k1: it was altered, or moved from another event, field or tenant",
			"open payload: field card: it is not sealed",
		}, pgtest.Value[[]string](t, pool, "SELECT array_agg(error ORDER BY error) FROM outbox.dead_letters"))
		require.NotContains(t, log.String(), canary)

		gone, err := seal.Parse("k1:destroyed")
		require.NoError(t, err)
		enqueueSealed(t, pool, keys, topicOf(spec), newPaid(tenant, "forgotten"))
		report, err = m.run(t, pool, gone, log.Logger(), spec, h).Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, report.Dead)
		require.Contains(t, pgtest.Value[[]string](t, pool, "SELECT array_agg(error) FROM outbox.dead_letters"),
			"open payload: field card: it is sealed with key k1: the key was destroyed")
	})
}

// TestSealedOlderVersions: an older version is opened as that version was sealed, and then brought to the present one.
func TestSealedOlderVersions(t *testing.T) {
	eachMachine(t, func(t *testing.T, m machine) {
		pool := pgtest.Plain(t)
		keys, h, tenant := ringOf(t, "k1"), newHeard(), uuid.New()
		for _, whole := range []bool{false, true} {
			old := sealedSpec(m.log, whole)
			old.Keys = func(p any) outbox.Keys { return outbox.Keys{TenantID: outbox.Tenant(p.(*paidV1).ShopID)} }
			spec := sealedSpec(m.log, !whole && !m.publishes)
			spec.Name, old.Name = fmt.Sprint("paid_", whole), fmt.Sprint("paid_", whole)
			step := payload.Upcast(1, func(p paidV1) (paid, error) {
				return paid{ShopID: p.ShopID, Name: p.Name, Card: p.Card, Cents: 4242424242}, nil
			})
			if whole {
				step = step.Sealed()
			}
			spec.Version, spec.History = 2, []payload.Upcaster{step}
			enqueueSealed(t, pool, keys, outbox.NewTopic[paidV1](old), paidV1{ShopID: tenant, Name: "a", Card: canary + " a"})
			r := m.run(t, pool, keys, runtimetest.DiscardLogger(), spec, h)
			report, err := r.Drain(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, report.Delivered)
			if m.publishes {
				require.Equal(t, "a", h.sent[len(h.sent)-1].Key)
				require.NotContains(t, string(h.sent[len(h.sent)-1].Payload), canary)
			} else {
				require.Equal(t, newPaid(tenant, "a"), h.payloads[len(h.payloads)-1])
			}
			if m.log {
				pgtest.Execute(t, pool, "DELETE FROM outbox.listeners")
			}
		}
	})
}

// TestSealedWholeIsForwarded: without keys and headers of their own, publishers forward what is sealed as a whole.
func TestSealedWholeIsForwarded(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	keys, h := ringOf(t, "k1"), newHeard()
	plain := publish.Publication{Broker: "kafka", Destination: "paid"}
	enqueueSealed(t, pool, keys, topicOf(sealedSpec(false, true)), newPaid(uuid.New(), "a"))
	enqueueSealed(t, pool, keys, topicOf(sealedSpec(true, true)), newPaid(uuid.New(), "a"))
	for _, run := range []func(testing.TB, *pgxpool.Pool, seal.Keyring, *slog.Logger, outbox.TopicSpec, *heard) opener{
		dispatcherOf(func(s outbox.TopicSpec, _ *heard) queue.Handler { return queue.Publish(topicOf(s), plain) }),
		listenerOf(0, func(s outbox.TopicSpec, _ *heard) listener.Handler {
			s.Log = true
			return listener.Publish(topicOf(s), plain)
		}),
	} {
		report, err := run(t, pool, nil, runtimetest.DiscardLogger(), sealedSpec(false, true), h).Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, report.Delivered)
	}
	for _, e := range h.sent {
		require.Regexp(t, `^\{"\$sealed": "sealed:v1:k1:[A-Za-z0-9_-]+"\}$`, string(e.Payload))
		require.Equal(t, "a", e.Key)
	}
}

// TestKeyringOutage: without a keyring, and while the keyring does not answer, the topic rests, and nothing is charged.
func TestKeyringOutage(t *testing.T) {
	eachMachine(t, func(t *testing.T, m machine) {
		if m.publishes {
			t.Log("a publisher needs no key")
			return
		}
		pool := pgtest.Plain(t)
		spec := sealedSpec(m.log, true)
		enqueueSealed(t, pool, ringOf(t, "k1"), topicOf(spec), newPaid(uuid.New(), "a"))
		outage := &switchable{k: seal.PerTenant(func(context.Context, uuid.UUID) (seal.Keyring, error) {
			return nil, errors.New("no answer")
		}, nil)}
		for k, want := range map[seal.Keyring]string{nil: "there is no keyring", outage: "no answer"} {
			log := runtimetest.NewLogSpy()
			runtimetest.RetryNow(t, pool)
			report, err := m.run(t, pool, k, log.Logger(), spec, newHeard()).Drain(t.Context())
			require.NoError(t, err)
			require.Zero(t, report.Delivered+report.Dead+report.Retried)
			require.Equal(t, []string{"shop/paid"}, report.Resting)
			require.Contains(t, log.String(), "payload: it is sealed with key k1: "+want)
		}
		h := newHeard()
		runtimetest.RetryNow(t, pool)
		report, err := m.run(t, pool, ringOf(t, "k1"), runtimetest.DiscardLogger(), spec, h).Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, report.Delivered)
		require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.delivered WHERE attempts <> 1"))
	})
}
