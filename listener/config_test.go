package listener_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

func TestListenerDefaults(t *testing.T) {
	t.Parallel()
	h := runtimetest.NewNotes()
	open := func(spec listener.Spec, cfg listener.Config) listener.Config {
		spec.Name = "ears"
		l, err := listener.New(runtimetest.Unconnected(t), spec, cfg, listener.Handle(runtimetest.SaidTopic, h, h.Handle))
		require.NoError(t, err)
		return listener.ConfigOf(l)
	}
	cfg := open(listener.Spec{}, listener.Config{})
	require.NotEqual(t, uuid.Nil, cfg.WorkerID)
	require.NotNil(t, cfg.Logger)
	cfg.WorkerID, cfg.Logger = uuid.Nil, nil
	require.Equal(t, listener.Config{
		BatchSize: 100, Concurrency: 1, LeaseDuration: 30 * time.Second, PollInterval: time.Second, MaxPollInterval: 10 * time.Second,
		ShutdownTimeout: 20 * time.Second, PruneInterval: 10 * time.Minute, MaxAttempts: 25, Wake: outbox.WakeDoorbell,
		Breaker: outbox.Breaker{Failures: 10, FirstPause: 100 * time.Millisecond, MaxPause: 1500 * time.Millisecond},
	}, cfg)

	spec := listener.Spec{Concurrency: 7, Lease: 900 * time.Millisecond, Retry: outbox.Retry{MaxAttempts: 3}}
	cfg = open(spec, listener.Config{})
	require.Equal(t, 7, cfg.Concurrency)
	require.Equal(t, 900*time.Millisecond, cfg.LeaseDuration)
	require.Equal(t, 300*time.Millisecond, cfg.PollInterval, "a third of a short lease")
	require.Equal(t, 300*time.Millisecond, cfg.MaxPollInterval, "likewise")
	require.Equal(t, 3, cfg.MaxAttempts)

	cfg = open(spec, listener.Config{Concurrency: 2, LeaseDuration: time.Minute, MaxAttempts: 9})
	require.Equal(t, 2, cfg.Concurrency)
	require.Equal(t, time.Minute, cfg.LeaseDuration)
	require.Equal(t, 9, cfg.MaxAttempts)

	cfg = open(spec, listener.Config{Retry: outbox.Retry{MaxAttempts: 4}})
	require.Equal(t, 4, cfg.MaxAttempts)
	cfg = open(spec, listener.Config{MaxAttempts: 9, Retry: outbox.Retry{MaxAttempts: 4}})
	require.Equal(t, 9, cfg.MaxAttempts, "MaxAttempts goes first")
}

func TestListenerRefusesConfig(t *testing.T) {
	t.Parallel()
	h := runtimetest.NewNotes()
	one := listener.Handle(runtimetest.SaidTopic, h, h.Handle)
	inTx := listener.HandleTx(runtimetest.SaidTopic, h, h.HandleTx)
	queue := runtimetest.Altered(runtimetest.SaidTopic, func(s *outbox.TopicSpec) { s.Log = false })
	elsewhere := runtimetest.Altered(runtimetest.SaidTopic, func(s *outbox.TopicSpec) { s.Schema = "elsewhere" })
	type handlers = []listener.Handler
	for name, c := range map[string]struct {
		spec     listener.Spec // called ears
		cfg      listener.Config
		handlers handlers // one if nil
		want     string
	}{
		"bad name":         {spec: listener.Spec{Name: "Big-Ears"}, want: `listener name "Big-Ears" is not a name like companion`},
		"bad schema":       {spec: listener.Spec{Schema: "no;pe"}, want: `schema name "no;pe" is not valid: use a lower-case letter, then up to 40 of a-z, 0-9 or _`},
		"few shards":       {spec: listener.Spec{Shards: -1}, want: "field Shards -1 is not between 1 and 64"},
		"many shards":      {spec: listener.Spec{Shards: 65}, want: "field Shards 65 is not between 1 and 64"},
		"max lag":          {spec: listener.Spec{MaxLag: -time.Second}, want: "MaxLag -1s is negative"},
		"small batch":      {cfg: listener.Config{BatchSize: -1}, want: "BatchSize -1 is not between 1 and 10000"},
		"big batch":        {cfg: listener.Config{BatchSize: 10_001}, want: "BatchSize 10001 is not between 1 and 10000"},
		"low concurrency":  {cfg: listener.Config{Concurrency: -1}, want: "field Concurrency -1 is not between 1 and 1000"},
		"high concurrency": {cfg: listener.Config{Concurrency: 1001}, want: "field Concurrency 1001 is not between 1 and 1000"},
		"lease":            {cfg: listener.Config{LeaseDuration: 99 * time.Millisecond}, want: "LeaseDuration 99ms is shorter than 100ms"},
		"YAML's lease":     {spec: listener.Spec{Lease: 99 * time.Millisecond}, want: "LeaseDuration 99ms is shorter than 100ms"},
		"short poll":       {cfg: listener.Config{PollInterval: -1}, want: "PollInterval -1ns is not between 1ms and a third of LeaseDuration 30s"},
		"long poll":        {cfg: listener.Config{PollInterval: 11 * time.Second}, want: "PollInterval 11s is not between 1ms and a third of LeaseDuration 30s"},
		"longest poll":     {cfg: listener.Config{MaxPollInterval: 11 * time.Second}, want: "MaxPollInterval 11s is not between PollInterval 1s and a third of LeaseDuration 30s"},
		"patience":         {cfg: listener.Config{ShutdownTimeout: -1}, want: "ShutdownTimeout -1ns is negative"},
		"attempts":         {cfg: listener.Config{MaxAttempts: -1}, want: "MaxAttempts -1 is not between 0 and 2147483647"},
		"wake":             {cfg: listener.Config{Wake: "drum"}, want: `field Wake "drum" is neither "doorbell" nor "poll"`},
		"two at a time":    {spec: listener.Spec{Shards: 65}, cfg: listener.Config{BatchSize: -1}, want: "field Shards 65 is not between 1 and 64; BatchSize -1 is not between 1 and 10000"},
		"none":             {handlers: handlers{}, want: "no handlers"},
		"no method":        {handlers: handlers{listener.Handle(runtimetest.SaidTopic, h, nil)}, want: "topic test/said: no handlers given (nil)"},
		"no value":         {handlers: handlers{listener.HandleTx(runtimetest.SaidTopic, txHandlers(nil), h.HandleTx)}, want: "topic test/said: no handlers given (nil)"},
		"queue":            {handlers: handlers{listener.Handle(queue, h, h.Handle)}, want: "topic test/said: has delivery queue: a listener reads log topics"},
		"two schemas":      {handlers: handlers{listener.Handle(elsewhere, h, h.Handle)}, want: `topic test/said: is in schema "elsewhere", the listener in "outbox"`},
		"two modes":        {handlers: handlers{one, listener.HandleTx(runtimetest.LooseTopic, h, h.HandleTx)}, want: "topic test/loose: one listener has handlers with a transaction and without"},
		"twice":            {handlers: handlers{one, one}, want: "topic test/said: has two handlers"},
		"transactional":    {handlers: handlers{inTx}, spec: listener.Spec{Concurrency: 2}, want: "field Concurrency 2: a transaction runs one handler at a time"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.spec.Name == "" {
				c.spec.Name = "ears"
			}
			if c.handlers == nil {
				c.handlers = handlers{one}
			}
			_, err := listener.New(runtimetest.Unconnected(t), c.spec, c.cfg, c.handlers...)
			require.EqualError(t, err, "new listener: "+c.want)
		})
	}
	_, err := listener.New(nil, listener.Spec{Name: "ears"}, listener.Config{}, one)
	require.EqualError(t, err, "new listener: no pool")
}

// txHandlers is like the interface of generated code.
type txHandlers interface {
	handle(context.Context, pgx.Tx, outbox.Delivery[runtimetest.Said]) error
}

// TestListenerSaysWhyItCannotStart: an error at the start ends Run and Drain, unlike a later one.
func TestListenerSaysWhyItCannotStart(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	fresh := pgtest.Database(t)
	restored := pgtest.Database(t)
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, restored, listener.Spec{}, listener.Config{}, runtimetest.NewNotes()))
	pgtest.Execute(t, restored, "UPDATE outbox.listeners SET system_id = 1")
	for name, c := range map[string]struct {
		pool *pgxpool.Pool
		is   error
		want string
	}{
		"no server":    {runtimetest.Unconnected(t), nil, "connection refused"},
		"not migrated": {pgtest.Pool(t, pgtest.Empty(t)), outbox.ErrNotMigrated, "schema outbox"},
		"restored":     {restored, outbox.ErrRestored, "restored"},
	} {
		l := runtimetest.ListenTo(t, c.pool, listener.Spec{}, listener.Config{}, runtimetest.NewNotes())
		_, drained := l.Drain(t.Context())
		for verb, err := range map[string]error{"run": l.Run(t.Context()), "drain": drained} {
			require.ErrorContains(t, err, verb+" listener ears: ", name)
			require.ErrorContains(t, err, c.want, name)
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
			}
		}
	}
	h := runtimetest.NewNotes()
	h.Hold = make(chan struct{})
	l := runtimetest.ListenTo(t, fresh, listener.Spec{}, listener.Config{}, h)
	runtimetest.Put(t, fresh, "a", 1)
	stop := runtimetest.StartListener(t, l)
	pgtest.Receive(t, h.Started, "the handler")
	require.EqualError(t, l.Run(t.Context()), "run listener ears: it is running already")
	_, err := l.Drain(t.Context())
	require.EqualError(t, err, "drain listener ears: it is running already")
	close(h.Hold)
	stop()
	require.Equal(t, []string{"a1"}, h.Names())
}
