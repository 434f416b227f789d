package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

func TestListenerDefaults(t *testing.T) {
	t.Parallel()
	h := newNotes()
	open := func(spec outbox.ListenerSpec, cfg outbox.ListenerConfig) outbox.ListenerConfig {
		spec.Name = "ears"
		l, err := outbox.NewListener(unconnected(t), spec, cfg, outbox.Listen(saidTopic, h, h.handle))
		require.NoError(t, err)
		return outbox.ListenerConfigOf(l)
	}
	cfg := open(outbox.ListenerSpec{}, outbox.ListenerConfig{})
	require.NotEqual(t, uuid.Nil, cfg.WorkerID)
	require.NotNil(t, cfg.Logger)
	cfg.WorkerID, cfg.Logger = uuid.Nil, nil
	require.Equal(t, outbox.ListenerConfig{
		BatchSize: 100, Concurrency: 1, LeaseDuration: 30 * time.Second, PollInterval: time.Second, MaxPollInterval: 10 * time.Second,
		ShutdownTimeout: 20 * time.Second, PruneInterval: 10 * time.Minute, MaxAttempts: 25, Wake: outbox.WakeDoorbell,
		Breaker: outbox.Breaker{Failures: 10, FirstPause: 100 * time.Millisecond, MaxPause: 1500 * time.Millisecond},
	}, cfg)

	spec := outbox.ListenerSpec{Concurrency: 7, Lease: 900 * time.Millisecond, Retry: outbox.Retry{MaxAttempts: 3}}
	cfg = open(spec, outbox.ListenerConfig{})
	require.Equal(t, 7, cfg.Concurrency)
	require.Equal(t, 900*time.Millisecond, cfg.LeaseDuration)
	require.Equal(t, 300*time.Millisecond, cfg.PollInterval, "a third of a short lease")
	require.Equal(t, 300*time.Millisecond, cfg.MaxPollInterval, "likewise")
	require.Equal(t, 3, cfg.MaxAttempts)

	cfg = open(spec, outbox.ListenerConfig{Concurrency: 2, LeaseDuration: time.Minute, MaxAttempts: 9})
	require.Equal(t, 2, cfg.Concurrency)
	require.Equal(t, time.Minute, cfg.LeaseDuration)
	require.Equal(t, 9, cfg.MaxAttempts)

	cfg = open(spec, outbox.ListenerConfig{Retry: outbox.Retry{MaxAttempts: 4}})
	require.Equal(t, 4, cfg.MaxAttempts)
	cfg = open(spec, outbox.ListenerConfig{MaxAttempts: 9, Retry: outbox.Retry{MaxAttempts: 4}})
	require.Equal(t, 9, cfg.MaxAttempts, "MaxAttempts goes first")
}

func TestListenerRefusesConfig(t *testing.T) {
	t.Parallel()
	h := newNotes()
	one := outbox.Listen(saidTopic, h, h.handle)
	inTx := outbox.ListenTx(saidTopic, h, h.handleTx)
	queue := altered(saidTopic, func(s *outbox.TopicSpec) { s.Log = false })
	elsewhere := altered(saidTopic, func(s *outbox.TopicSpec) { s.Schema = "elsewhere" })
	type handlers = []outbox.ListenerHandler
	for name, c := range map[string]struct {
		spec     outbox.ListenerSpec // called ears
		cfg      outbox.ListenerConfig
		handlers handlers // one if nil
		want     string
	}{
		"bad name":      {spec: outbox.ListenerSpec{Name: "Big-Ears"}, want: `listener name "Big-Ears" is not a name like companion`},
		"bad schema":    {spec: outbox.ListenerSpec{Schema: "no;pe"}, want: `schema name "no;pe" is not valid: use a lower-case letter, then up to 40 of a-z, 0-9 or _`},
		"few shards":    {spec: outbox.ListenerSpec{Shards: -1}, want: "field Shards -1 is not between 1 and 64"},
		"many shards":   {spec: outbox.ListenerSpec{Shards: 65}, want: "field Shards 65 is not between 1 and 64"},
		"max lag":       {spec: outbox.ListenerSpec{MaxLag: -time.Second}, want: "MaxLag -1s is negative"},
		"small batch":   {cfg: outbox.ListenerConfig{BatchSize: -1}, want: "BatchSize -1 is not between 1 and 10000"},
		"big batch":     {cfg: outbox.ListenerConfig{BatchSize: 10_001}, want: "BatchSize 10001 is not between 1 and 10000"},
		"few at once":   {cfg: outbox.ListenerConfig{Concurrency: -1}, want: "field Concurrency -1 is not between 1 and 1000"},
		"many at once":  {cfg: outbox.ListenerConfig{Concurrency: 1001}, want: "field Concurrency 1001 is not between 1 and 1000"},
		"lease":         {cfg: outbox.ListenerConfig{LeaseDuration: 99 * time.Millisecond}, want: "LeaseDuration 99ms is shorter than 100ms"},
		"YAML's lease":  {spec: outbox.ListenerSpec{Lease: 99 * time.Millisecond}, want: "LeaseDuration 99ms is shorter than 100ms"},
		"short poll":    {cfg: outbox.ListenerConfig{PollInterval: -1}, want: "PollInterval -1ns is not between 1ms and a third of LeaseDuration 30s"},
		"long poll":     {cfg: outbox.ListenerConfig{PollInterval: 11 * time.Second}, want: "PollInterval 11s is not between 1ms and a third of LeaseDuration 30s"},
		"longest poll":  {cfg: outbox.ListenerConfig{MaxPollInterval: 11 * time.Second}, want: "MaxPollInterval 11s is not between PollInterval 1s and a third of LeaseDuration 30s"},
		"patience":      {cfg: outbox.ListenerConfig{ShutdownTimeout: -1}, want: "ShutdownTimeout -1ns is negative"},
		"attempts":      {cfg: outbox.ListenerConfig{MaxAttempts: -1}, want: "MaxAttempts -1 is not between 0 and 2147483647"},
		"wake":          {cfg: outbox.ListenerConfig{Wake: "drum"}, want: `field Wake "drum" is neither "doorbell" nor "poll"`},
		"two at a time": {spec: outbox.ListenerSpec{Shards: 65}, cfg: outbox.ListenerConfig{BatchSize: -1}, want: "field Shards 65 is not between 1 and 64\nBatchSize -1 is not between 1 and 10000"},
		"none":          {handlers: handlers{}, want: "no handlers"},
		"no method":     {handlers: handlers{outbox.Listen(saidTopic, h, nil)}, want: "topic test/said: no handlers given (nil)"},
		"no value":      {handlers: handlers{outbox.ListenTx(saidTopic, txHandlers(nil), h.handleTx)}, want: "topic test/said: no handlers given (nil)"},
		"queue":         {handlers: handlers{outbox.Listen(queue, h, h.handle)}, want: "topic test/said: has delivery queue: a listener reads log topics"},
		"two schemas":   {handlers: handlers{outbox.Listen(elsewhere, h, h.handle)}, want: `topic test/said: is in schema "elsewhere", the listener in "outbox"`},
		"two modes":     {handlers: handlers{one, outbox.ListenTx(looseTopic, h, h.handleTx)}, want: "topic test/loose: one listener has handlers with a transaction and without"},
		"twice":         {handlers: handlers{one, one}, want: "topic test/said: has two handlers"},
		"transactional": {handlers: handlers{inTx}, spec: outbox.ListenerSpec{Concurrency: 2}, want: "field Concurrency 2: a transaction runs one handler at a time"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.spec.Name == "" {
				c.spec.Name = "ears"
			}
			if c.handlers == nil {
				c.handlers = handlers{one}
			}
			_, err := outbox.NewListener(unconnected(t), c.spec, c.cfg, c.handlers...)
			require.EqualError(t, err, "new listener: "+c.want)
		})
	}
	_, err := outbox.NewListener(nil, outbox.ListenerSpec{Name: "ears"}, outbox.ListenerConfig{}, one)
	require.EqualError(t, err, "new listener: no pool")
}

// txHandlers is like the interface of generated code.
type txHandlers interface {
	handle(context.Context, pgx.Tx, outbox.Delivery[said]) error
}

// TestListenerSaysWhyItCannotStart: what is wrong at the start, other than later, ends Run and Drain.
func TestListenerSaysWhyItCannotStart(t *testing.T) {
	t.Parallel()
	fresh := pgtest.Database(t)
	restored := pgtest.Database(t)
	drainAll(t, listenTo(t, restored, outbox.ListenerSpec{}, outbox.ListenerConfig{}, newNotes()))
	execute(t, restored, "UPDATE outbox.listeners SET system_id = 1")
	for name, c := range map[string]struct {
		pool *pgxpool.Pool
		is   error
		want string
	}{
		"no server":    {unconnected(t), nil, "connection refused"},
		"not migrated": {pgtest.Pool(t, pgtest.Empty(t)), outbox.ErrNotMigrated, "schema outbox"},
		"restored":     {restored, outbox.ErrRestored, "restored"},
	} {
		l := listenTo(t, c.pool, outbox.ListenerSpec{}, outbox.ListenerConfig{}, newNotes())
		_, drained := l.Drain(t.Context())
		for verb, err := range map[string]error{"run": l.Run(t.Context()), "drain": drained} {
			require.ErrorContains(t, err, verb+" listener ears: ", name)
			require.ErrorContains(t, err, c.want, name)
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
			}
		}
	}
	h := newNotes()
	h.hold = make(chan struct{})
	l := listenTo(t, fresh, outbox.ListenerSpec{}, outbox.ListenerConfig{}, h)
	put1(t, fresh, "a", 1)
	stop := startListener(t, l)
	receive(t, h.started, "the handler")
	require.EqualError(t, l.Run(t.Context()), "run listener ears: it is running already")
	_, err := l.Drain(t.Context())
	require.EqualError(t, err, "drain listener ears: it is running already")
	close(h.hold)
	stop()
	require.Equal(t, []string{"a1"}, h.names())
}
