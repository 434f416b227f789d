package consumetest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// Group is the consumer group of the suite, for Pending.
const Group = "consumetest"

// bench is a check with its broker and its database.
type bench struct {
	testing.TB
	Harness
	Broker
	name  string
	admin *pgxpool.Pool // of the suite
	pool  *pgxpool.Pool // of the receiver
	sent  []Message
}

// database returns a migrated database with the tables of the effects. They have no unique constraint.
func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	admin := pgtest.Database(t)
	for _, statement := range []string{
		"CREATE TABLE effects (no bigint GENERATED ALWAYS AS IDENTITY, event uuid NOT NULL, key text NOT NULL, n integer NOT NULL)",
		"CREATE TABLE owners (id integer PRIMARY KEY)",
		"CREATE TABLE deferred (owner integer CONSTRAINT deferred_owner REFERENCES owners DEFERRABLE INITIALLY DEFERRED)",
	} {
		pgtest.Execute(t, admin, statement)
	}
	return admin
}

// connections are those of the receiver's pool: two transactions, those of Run, and two more.
const connections = 6

// pool opens a small pool, which a method can exhaust.
func pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	cfg.MaxConns = connections
	p, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			p.Close()
		}()
		select {
		case <-closed:
		case <-time.After(pgtest.Patience):
			t.Errorf("%d connections of the pool are in use after the check", p.Stat().AcquiredConns())
		}
	})
	return p
}

func consumerOf(t testing.TB, e *effects) *consume.Consumer {
	t.Helper()
	ib, err := inbox.New(inbox.Config{Group: Group})
	require.NoError(t, err)
	c, err := consume.New(ib, consume.Handle(stepTaken, e, (*effects).ConsumeStepTaken))
	require.NoError(t, err)
	return c
}

// maxAttempts of a message: two when it arrives, and those of the retry, which may be lateCalls.
const maxAttempts = 6

// config has short pauses. A message is parked after two attempts.
func config(batch int) receive.Config {
	return receive.Config{
		BatchSize: batch, Concurrency: 2, Attempts: 2, MaxAttempts: maxAttempts, BaseDelay: 10 * time.Millisecond,
		MaxDelay: 20 * time.Millisecond, PollInterval: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	}
}

// put sends the events 1 to n of each key, in turn.
func (b *bench) put(n int, keys ...string) {
	b.Helper()
	var ms []Message
	for i := range n {
		for _, key := range keys {
			body, err := json.Marshal(step{key, i + 1})
			require.NoError(b, err)
			ms = append(ms, Message{Key: key, Message: consume.Message{
				ContentType: "application/json", Body: body, Headers: map[string]string{},
				Attributes: map[string]string{
					"specversion": "1.0", "id": uuid.Must(uuid.NewV7()).String(), "type": "consumetest.step_taken", "source": "/consumetest",
					"partitionkey": key,
				},
			}})
		}
	}
	b.sent = append(b.sent, ms...)
	ctx, cancel := context.WithTimeout(context.Background(), b.Patience)
	defer cancel()
	require.NoError(b, b.Send(ctx, ms), "Broker.Send")
}

// running is a receiver that runs.
type running struct {
	cancel context.CancelFunc
	over   chan struct{}
	err    error
}

// start runs the receiver until stop is called or the check ends.
func (b *bench) start(e *effects, cfg receive.Config) *running {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, c := &running{cancel: cancel, over: make(chan struct{})}, consumerOf(b, e)
	go func() {
		defer close(r.over)
		r.err = b.Harness.Run(ctx, b.Address, b.pool, c, cfg)
	}()
	b.Cleanup(func() {
		cancel()
		select {
		case <-r.over:
		case <-time.After(b.Patience):
		}
	})
	return r
}

// stop ends the receiver, which must return nil.
func (b *bench) stop(r *running) {
	b.Helper()
	r.cancel()
	select {
	case <-r.over:
		require.NoError(b, r.err, "Run must return nil when its context has ended")
	case <-time.After(b.Patience):
		require.FailNow(b, "Run does not return when its context has ended")
	}
}

// eventually waits until look returns "", which is what is still missing. Receivers must run meanwhile.
func (b *bench) eventually(look func() string, rs ...*running) {
	b.Helper()
	for deadline := time.Now().Add(b.Patience); ; {
		missing := look()
		if missing == "" {
			return
		}
		for _, r := range rs {
			select {
			case <-r.over:
				require.FailNow(b, "Run ended by itself", "%v; %s", r.err, missing)
			default:
			}
		}
		require.True(b, time.Now().Before(deadline), "waited %s: %s", b.Patience, missing)
		<-time.After(pgtest.Interval)
	}
}

// want is what a check expects: all messages are applied, except some that are dead letters.
type want struct {
	n    int
	keys []string
	dead map[step]string // a part of the error
}

// requireSettled waits until everything is settled, and fails unless each effect has happened once and in order.
func (b *bench) requireSettled(w want, rs ...*running) {
	b.Helper()
	expected := make(map[string][]int32)
	for _, key := range w.keys {
		for n := 1; n <= w.n; n++ {
			if _, dies := w.dead[step{key, n}]; !dies {
				expected[key] = append(expected[key], int32(n))
			}
		}
	}
	b.eventually(func() string {
		got := b.applied()
		for key, ns := range got {
			require.LessOrEqual(b, len(ns), len(expected[key]), "effects of key %s, more than there are messages: %v", key, ns)
			require.Equal(b, expected[key][:len(ns)], ns, "effects of key %s, in their order", key)
		}
		if !maps.EqualFunc(got, expected, func(a, b []int32) bool { return len(a) == len(b) }) {
			return fmt.Sprintf("effects %v, and not yet %v; %s", got, expected, b.kept())
		}
		if parked := pgtest.Count(b, b.admin, "SELECT count(*) FROM outbox.inbox_messages WHERE status = 'parked'"); parked > 0 {
			return fmt.Sprintf("%d messages are parked; %s", parked, b.kept())
		}
		if dead := b.dead(); len(dead) < len(w.dead) {
			return fmt.Sprintf("%d dead letters of %d: %v", len(dead), len(w.dead), dead)
		}
		if b.Pending == nil {
			return ""
		}
		if n, err := b.Pending(context.Background()); err != nil || n > 0 {
			return fmt.Sprintf("%d messages are not acknowledged (%v)", n, err)
		}
		return ""
	}, rs...)
	dead := b.dead()
	require.Len(b, dead, len(w.dead), "dead letters: %v", dead)
	for s, part := range w.dead {
		require.Contains(b, dead, s)
		require.Contains(b, strings.ToLower(dead[s]), strings.ToLower(part), "the dead letter must say what happened")
		require.NotContains(b, dead[s], "a secret")
	}
}

// requireClean fails unless the receiver has given all connections back.
func (b *bench) requireClean() {
	b.Helper()
	b.eventually(func() string {
		if n := b.pool.Stat().AcquiredConns(); n > 0 {
			return fmt.Sprintf("%d connections of the pool are still in use", n)
		}
		return ""
	})
}

// applied returns the numbers of the events whose effects are there, by key.
func (b *bench) applied() map[string][]int32 {
	b.Helper()
	rows, err := b.admin.Query(context.Background(), "SELECT key, array_agg(n ORDER BY no) FROM effects GROUP BY key")
	require.NoError(b, err)
	got := make(map[string][]int32)
	var key string
	var ns []int32
	_, err = pgx.ForEachRow(rows, []any{&key, &ns}, func() error {
		got[key] = append([]int32(nil), ns...)
		return nil
	})
	require.NoError(b, err)
	return got
}

// dead returns the errors of the dead letters.
func (b *bench) dead() map[step]string {
	b.Helper()
	byID := make(map[string]string)
	if b.Broker.Dead != nil {
		var err error
		byID, err = b.Broker.Dead(context.Background())
		require.NoError(b, err, "Broker.Dead")
	} else {
		rows, err := b.admin.Query(context.Background(),
			"SELECT event_id::text, error FROM outbox.inbox_messages WHERE status = 'dead'")
		require.NoError(b, err)
		var id, text string
		_, err = pgx.ForEachRow(rows, []any{&id, &text}, func() error {
			byID[id] = text
			return nil
		})
		require.NoError(b, err)
	}
	dead := make(map[step]string)
	for _, m := range b.sent {
		if text, is := byID[m.Attributes["id"]]; is {
			var s step
			require.NoError(b, json.Unmarshal(m.Body, &s))
			dead[s] = text
		}
	}
	return dead
}

// kept describes what the receiver keeps, for a failure.
func (b *bench) kept() string {
	return pgtest.Value[string](b, b.admin, `SELECT coalesce(string_agg(
		format('%s %s, %s attempts: %s', status, key, attempts, error), '; '), '')
		FROM outbox.inbox_messages WHERE attempts > 0`)
}

// settled is how many messages are applied or kept.
func (b *bench) settled() int {
	return pgtest.Count(b, b.admin, "SELECT (SELECT count(*) FROM effects) + (SELECT count(*) FROM outbox.inbox_messages)")
}
