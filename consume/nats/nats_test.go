package nats_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/nats"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestEventsAreAppliedOnceInOrder: each event has its effect once, in the order of its key, and the server has every
// acknowledgement. A later Run continues from there.
func TestEventsAreAppliedOnceInOrder(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	b.put(1, 40, "a", "b", "c")
	r := run(t, pool, &effects{}, b.config())
	settlesAt(t, pool, 120)
	b.acknowledged("projection")
	lag, err := r.Lag(t.Context())
	require.NoError(t, err)
	require.Zero(t, lag)
	require.NoError(t, r.stop())
	b.put(41, 50, "a", "b", "c")
	pgtest.Eventually(t, func() bool { // the server may still be about to drop the last request of the first Run
		lag, err := r.Lag(t.Context())
		return err == nil && lag.Pending+uint64(lag.Unacknowledged) == 30
	})
	r = run(t, pool, &effects{}, b.config())
	settlesAt(t, pool, 150)
	requireSteps(t, pool, 50, "a", "b", "c")
	err = r.Run(t.Context())
	require.ErrorIs(t, err, nats.ErrRunning)
}

// TestLostDeliveriesComeFirst: messages that another client got and did not acknowledge, as a killed process does, are applied
// before those that follow them.
func TestLostDeliveriesComeFirst(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	b.put(1, 20, "a", "b")
	c, err := b.js.CreateConsumer(t.Context(), "USERS", jetstream.ConsumerConfig{Durable: "projection", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 2 * time.Second})
	require.NoError(t, err)
	taken, err := c.Fetch(7)
	require.NoError(t, err)
	n := 0
	for range taken.Messages() {
		n++
	}
	require.Equal(t, 7, n)
	run(t, pool, &effects{}, b.config())
	settlesAt(t, pool, 40)
	requireSteps(t, pool, 20, "a", "b")
}

// TestLostDeliveryIsNoticed: a message that another client takes while the receiver runs is applied before those that follow.
func TestLostDeliveryIsNoticed(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	e := &effects{}
	started, finish := make(chan struct{}), make(chan struct{})
	e.set(func(_ context.Context, _ pgx.Tx, s step) error {
		if s.N == 1 {
			close(started)
			<-finish
		}
		return nil
	})
	b.put(1, 1, "a")
	run(t, pool, e, b.config(func(c *nats.Config) { c.MaxPending = 1; c.AckWait = 3 * time.Second }))
	pgtest.Receive(t, started, "the first event")
	// The receiver may hold one message, so this client gets the next ones.
	c, err := b.js.Consumer(t.Context(), "USERS", "projection")
	require.NoError(t, err)
	cfg := c.CachedInfo().Config
	cfg.MaxAckPending = 1000
	_, err = b.js.UpdateConsumer(t.Context(), "USERS", cfg)
	require.NoError(t, err)
	b.put(2, 30, "a")
	taken, err := c.Fetch(5, jetstream.FetchMaxWait(time.Second))
	require.NoError(t, err)
	for range taken.Messages() {
	}
	close(finish)
	settlesAt(t, pool, 30)
	requireSteps(t, pool, 30, "a")
}

// TestFirstDeliveryGetsLost: the first message that a receiver would get is lost with its connection. It is applied before those that
// follow, whether the receiver is the first one of the durable consumer or a later one.
func TestFirstDeliveryGetsLost(t *testing.T) {
	t.Parallel()
	b, pool, d := newBroker(t), database(t), &dialer{}
	asked, err := b.nc.SubscribeSync("$JS.API.CONSUMER.INFO.USERS.projection")
	require.NoError(t, err)
	for n := range 2 {
		r := run(t, pool, &effects{}, b.config(func(c *nats.Config) { c.Options = []natsgo.Option{natsgo.SetCustomDialer(d)} }))
		for err == nil { // until the receiver has no more questions: it knows that it has all messages
			_, err = asked.NextMsg(time.Second)
		}
		require.ErrorIs(t, err, natsgo.ErrTimeout)
		err = nil
		d.lose.Store(true)
		b.put(n*20+1, n*20+1, "a")
		pgtest.Eventually(t, func() bool { return !d.lose.Load() })
		b.put(n*20+2, n*20+20, "a")
		settlesAt(t, pool, n*20+20)
		requireSteps(t, pool, n*20+20, "a")
		b.acknowledged("projection")
		require.NoError(t, r.stop())
	}
}

// TestTakeOver: a second process waits, and continues when the first ends. It gets at once what the first one held.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	e := &effects{}
	started := make(chan struct{}, 100)
	e.set(func(ctx context.Context, _ pgx.Tx, s step) error {
		started <- struct{}{}
		return consume.Unavailable(errors.New("away"))
	})
	var log logs
	slow := func(c *nats.Config) {
		c.AckWait = 10 * time.Minute
		c.Receive.Logger = slog.New(slog.NewTextHandler(&log, nil))
	}
	first := run(t, pool, e, b.config(slow))
	b.put(1, 20, "a", "b")
	pgtest.Receive(t, started, "an event")
	second := run(t, pool, &effects{}, b.config(slow))
	pgtest.Eventually(t, func() bool {
		return strings.Contains(log.String(), `level=INFO msg="another process reads the durable consumer: this one waits to take over"`)
	}, log.String)
	require.NoError(t, first.stop())
	settlesAt(t, pool, 40)
	requireSteps(t, pool, 20, "a", "b")
	require.NoError(t, second.stop())
	b.acknowledged("projection")
	require.Contains(t, log.String(), `msg="this process reads the durable consumer now"`)
}

// TestLockLost: when the connection with the lock is cut, a process continues when it has the lock again.
func TestLockLost(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	var log logs
	run(t, pool, &effects{}, b.config(func(c *nats.Config) { c.Receive.Logger = slog.New(slog.NewTextHandler(&log, nil)) }))
	b.put(1, 10, "a")
	settlesAt(t, pool, 10)
	pgtest.Settles(t, pool, 1, `SELECT count(pg_terminate_backend(pid)) FROM pg_locks
		WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	pgtest.Eventually(t, func() bool { return strings.Contains(log.String(), "the lock of the durable consumer was lost") }, log.String)
	b.put(11, 20, "a")
	settlesAt(t, pool, 20)
	requireSteps(t, pool, 20, "a")
}

// TestLongEffect: JetStream does not deliver a message again whose effect takes longer than AckWait.
func TestLongEffect(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	b, pool := newBroker(t), database(t)
	e := &effects{}
	finished := make(chan struct{})
	finish := sync.OnceFunc(func() { close(finished) })
	defer finish()
	e.set(func(context.Context, pgx.Tx, step) error { <-finished; return nil })
	run(t, pool, e, b.config(func(c *nats.Config) { c.AckWait = 10 * time.Second }))
	b.put(1, 3, "a")
	c, err := b.js.Consumer(t.Context(), "USERS", "projection")
	for err != nil {
		c, err = b.js.Consumer(t.Context(), "USERS", "projection")
	}
	<-time.After(13 * time.Second)
	info, err := c.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, info.NumAckPending)
	require.Zero(t, info.NumRedelivered, "reports of progress come four times per AckWait")
	finish()
	settlesAt(t, pool, 3)
	requireSteps(t, pool, 3, "a")
}

// TestForeignMessages: a message of another producer is a dead letter with its place, and those around it are applied.
func TestForeignMessages(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	b.put(1, 2, "a")
	_, err := b.js.Publish(t.Context(), "users.other", []byte("\x00\xff"))
	require.NoError(t, err)
	unknown := message("a", 3)
	unknown.Header["ce-type"] = []string{"users.user_deleted"}
	_, err = b.js.PublishMsg(t.Context(), unknown)
	require.NoError(t, err)
	b.put(3, 4, "a")
	r := run(t, pool, &effects{}, b.config())
	settlesAt(t, pool, 4)
	b.acknowledged("projection")
	requireSteps(t, pool, 4, "a")
	require.Equal(t, []string{"nats:USERS@3", "nats:USERS@4"},
		pgtest.Value[[]string](t, pool, "SELECT array_agg(place ORDER BY no) FROM outbox.inbox_messages WHERE status = 'dead'"))
	status, err := r.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, status.Dead)
}

// TestParkedKey: a key whose event fails waits in the database, and the others go on.
func TestParkedKey(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	e := &effects{}
	e.set(func(_ context.Context, _ pgx.Tx, s step) error {
		if s.Key == "a" && s.N == 3 {
			return errors.New("not yet")
		}
		return nil
	})
	b.put(1, 10, "a", "b")
	run(t, pool, e, b.config(func(c *nats.Config) { c.Receive.MaxAttempts = 1_000_000 }))
	settlesAt(t, pool, 12)
	b.acknowledged("projection")
	e.set(nil)
	settlesAt(t, pool, 20)
	requireSteps(t, pool, 10, "a", "b")
}

// TestSubjectsAndKeys: Subjects choose messages, several receivers share a stream by them, and Key gives an order to events that
// have no partition key.
func TestSubjectsAndKeys(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	for n := 1; n <= 10; n++ {
		for _, subject := range []string{"users.0.x", "users.1.y", "users.2.z"} {
			m := message(subject, n)
			delete(m.Header, "ce-partitionkey")
			m.Subject = subject
			_, err := b.js.PublishMsg(t.Context(), m)
			require.NoError(t, err)
		}
	}
	for i, subjects := range [][]string{{"users.0.>", "users.5.>"}, {"users.1.>"}} {
		run(t, pool, &effects{}, b.config(func(c *nats.Config) {
			c.Durable, c.Subjects = fmt.Sprintf("part-%d", i), subjects
			c.Key = func(_ consume.Event, subject string) string { return subject }
		}))
	}
	settlesAt(t, pool, 20)
	b.acknowledged("part-0")
	b.acknowledged("part-1")
	requireSteps(t, pool, 10, "users.0.x", "users.1.y")
	requireSteps(t, pool, 0, "users.2.z")
}

// TestUnordered: without an order, several processes share the durable consumer, and each event has its effect once.
func TestUnordered(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	for range 2 {
		run(t, pool, &effects{}, b.config(func(c *nats.Config) { c.Unordered, c.MaxPending = true, 50 }))
	}
	b.put(1, 100, "a", "b")
	settlesAt(t, pool, 200)
	b.acknowledged("projection")
	require.Equal(t, 200, pgtest.Count(t, pool, "SELECT count(DISTINCT event) FROM effects"))
}

// TestLostAcknowledgementIsRepeated: an acknowledgement that could not be sent is sent later, also if no other message follows.
func TestLostAcknowledgementIsRepeated(t *testing.T) {
	t.Parallel()
	b, pool, d := newBroker(t), database(t), &dialer{}
	e := &effects{}
	e.set(func(context.Context, pgx.Tx, step) error {
		d.isolate(true)
		return nil
	})
	run(t, pool, e, b.config(func(c *nats.Config) {
		c.Unordered = true
		c.Options = []natsgo.Option{natsgo.SetCustomDialer(d)}
	}))
	b.put(1, 1, "a")
	settlesAt(t, pool, 1)
	d.isolate(false)
	b.acknowledged("projection")
	requireSteps(t, pool, 1, "a")
}

// TestDeletedMessage: a message that is deleted from the stream while a process holds it does not hold up the others when a later
// delivery has got lost.
func TestDeletedMessage(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t) // it waits for two AckWaits
	b, pool, d := newBroker(t), database(t), &dialer{}
	e := &effects{}
	started, finish := make(chan struct{}), make(chan struct{})
	e.set(func(_ context.Context, _ pgx.Tx, s step) error {
		if s.N == 1 {
			close(started)
			<-finish
		}
		return nil
	})
	b.put(1, 1, "a")
	r := run(t, pool, e, b.config(func(c *nats.Config) {
		c.Receive.BatchSize = 1
		c.Options = []natsgo.Option{natsgo.SetCustomDialer(d)}
	}))
	pgtest.Receive(t, started, "the first event")
	progress, err := b.nc.SubscribeSync("$JS.ACK.USERS.projection.*.10.>")
	require.NoError(t, err)
	b.put(2, 10, "a") // which wait for it
	_, err = progress.NextMsg(pgtest.Patience)
	require.NoError(t, err, "the receiver has them")
	stream, err := b.js.Stream(t.Context(), "USERS")
	require.NoError(t, err)
	require.NoError(t, stream.DeleteMsg(t.Context(), 5))
	d.lose.Store(true)
	b.put(11, 11, "a")
	pgtest.Eventually(t, func() bool { return !d.lose.Load() })
	b.put(12, 20, "a")
	pgtest.Eventually(t, func() bool { // the lost delivery has been noticed
		lag, err := r.Lag(t.Context())
		return err == nil && lag.Pending == 0 && lag.Unacknowledged == 19
	})
	close(finish)
	settlesAt(t, pool, 20)
	requireSteps(t, pool, 20, "a")
}

// TestFromEnd: a new durable consumer starts with what is stored from then on.
func TestFromEnd(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	b.put(1, 5, "old")
	r := run(t, pool, &effects{}, b.config(func(c *nats.Config) { c.FromEnd = true }))
	pgtest.Eventually(t, func() bool { _, err := r.Lag(t.Context()); return err == nil })
	b.put(1, 5, "new")
	settlesAt(t, pool, 5)
	requireSteps(t, pool, 5, "new")
}

// ends waits for the error of Run.
func (r *running) ends(t testing.TB) error {
	t.Helper()
	pgtest.Receive(t, r.done, "the end of Run")
	require.Error(t, r.err)
	return r.err
}

func shortly(c *nats.Config) { c.StartTimeout = 2 * time.Second }

// TestMissingStream: a stream that does not exist is an error that names it. One that is created a little late is none.
func TestMissingStream(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	err := run(t, pool, &effects{}, b.config(shortly, func(c *nats.Config) { c.Stream = "ORDERS" })).ends(t)
	require.ErrorIs(t, err, nats.ErrNoStream)
	require.ErrorContains(t, err, "consume ORDERS/projection: ask 127.0.0.1:")
	require.ErrorContains(t, err, "the stream does not exist: create it, or correct the name")

	run(t, pool, &effects{}, b.config(func(c *nats.Config) { c.Stream = "LATE" }))
	<-time.After(500 * time.Millisecond)
	_, err = b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "LATE", Subjects: []string{"late.>"}})
	require.NoError(t, err)
	m := message("a", 1)
	m.Subject = "late.step"
	_, err = b.js.PublishMsg(t.Context(), m)
	require.NoError(t, err)
	settlesAt(t, pool, 1)
}

// TestDeleted: a durable consumer or a stream that somebody deletes ends Run, and nothing is begun from the start.
func TestDeleted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		remove func(b *broker) error
		want   error
	}{
		"consumer": {func(b *broker) error { return b.js.DeleteConsumer(t.Context(), "USERS", "projection") }, nats.ErrConsumerDeleted},
		"stream":   {func(b *broker) error { return b.js.DeleteStream(t.Context(), "USERS") }, nats.ErrNoStream},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, pool := newBroker(t), database(t)
			r := run(t, pool, &effects{}, b.config(shortly))
			b.put(1, 3, "a")
			settlesAt(t, pool, 3)
			require.NoError(t, test.remove(b))
			require.ErrorIs(t, r.ends(t), test.want)
		})
	}
}

// TestUnreachable: at the start, a server that does not answer is an error.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	b, pool := newBroker(t), database(t)
	b.kill()
	err := run(t, pool, &effects{}, b.config(shortly)).ends(t)
	require.ErrorIs(t, err, nats.ErrUnreachable)

	none := newBroker(t)
	require.NoError(t, none.DisableJetStream())
	err = run(t, pool, &effects{}, none.config(shortly)).ends(t)
	require.ErrorIs(t, err, nats.ErrUnreachable)
}

// TestRefused: wrong credentials and missing rights are errors that say what is refused, and show no password.
func TestRefused(t *testing.T) {
	t.Parallel()
	deny := func(subjects ...string) *server.Permissions {
		return &server.Permissions{Publish: &server.SubjectPermission{Deny: subjects}}
	}
	users := func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "S3CRET"},
			{Username: "info", Password: "S3CRET", Permissions: deny("$JS.API.CONSUMER.INFO.>")},
			{Username: "create", Password: "S3CRET", Permissions: deny("$JS.API.CONSUMER.CREATE.>", "$JS.API.CONSUMER.DURABLE.>")},
			{Username: "next", Password: "S3CRET", Permissions: deny("$JS.API.CONSUMER.MSG.NEXT.>")},
			{Username: "ack", Password: "S3CRET", Permissions: deny("$JS.ACK.>")},
		}
	}
	for user, want := range map[string]string{
		"nobody": "ADDRESS: the server refuses access: nats: authorization violation: check the user and password in Config.URL, or the credentials in Config.Options",
		"info": "ADDRESS: the server refuses access: nats: permissions violation: Permissions Violation for Publish to \"$JS.API.CONSUMER.INFO.USERS.projection\": " +
			"allow that for the user of Config.URL or Config.Options",
		"create": "ADDRESS: the server refuses access: nats: permissions violation: Permissions Violation for Publish to \"$JS.API.CONSUMER.",
		"next":   "ADDRESS: the server refuses access: nats: permissions violation: Permissions Violation for Publish to \"$JS.API.CONSUMER.MSG.NEXT.USERS.projection\"",
		"ack":    "ADDRESS: the server refuses access: nats: permissions violation: Permissions Violation for Publish to \"$JS.ACK.USERS.projection",
	} {
		t.Run(user, func(t *testing.T) {
			t.Parallel()
			b, pool := newBroker(t, users), database(t)
			b.put(1, 3, "a")
			var log logs
			r := run(t, pool, &effects{}, b.config(func(c *nats.Config) {
				c.StartTimeout = 10 * pgtest.Patience // neither Run nor Lag must wait for it
				c.URL = b.url(user, "S3CRET")
				c.Receive.Logger = slog.New(slog.NewTextHandler(&log, nil))
			}))
			err := r.ends(t)
			if user == "nobody" || user == "info" {
				requireLagRefused(t, r, nats.ErrRefused)
			}
			require.ErrorIs(t, err, nats.ErrRefused)
			require.ErrorContains(t, err, strings.Replace(want, "ADDRESS", fmt.Sprintf("consume USERS/projection: ask 127.0.0.1:%d", b.opts.Port), 1))
			require.NotContains(t, err.Error()+log.String(), "S3CRET")
		})
	}
}

// TestRights: the rights that docs/run/consumers.md lists suffice.
func TestRights(t *testing.T) {
	t.Parallel()
	allow := func(subjects ...string) *server.Permissions {
		return &server.Permissions{
			Publish: &server.SubjectPermission{Allow: subjects}, Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
		}
	}
	working := []string{"$JS.API.CONSUMER.INFO.USERS.projection", "$JS.API.CONSUMER.MSG.NEXT.USERS.projection", "$JS.ACK.USERS.projection.>"}
	b, pool := newBroker(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "x"},
			{Username: "creates", Password: "x", Permissions: allow(append(working, "$JS.API.CONSUMER.CREATE.USERS.projection")...)},
			{Username: "works", Password: "x", Permissions: allow(working...)},
		}
	}), database(t)
	b.put(1, 20, "a")
	for i, user := range []string{"creates", "works"} {
		var log logs
		r := run(t, pool, &effects{}, b.config(func(c *nats.Config) {
			c.URL = b.url(user, "x")
			c.Receive.Logger = slog.New(slog.NewTextHandler(&log, nil))
		}))
		settlesAt(t, pool, 20*(i+1))
		b.acknowledged("projection")
		require.NoError(t, r.stop())
		require.NotContains(t, log.String(), "level=WARN")
		b.put(21, 40, "a")
	}
	requireSteps(t, pool, 40, "a")
}

// TestUnsuitableConsumers: a durable consumer that could lose messages is refused.
func TestUnsuitableConsumers(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	for want, cfg := range map[string]jetstream.ConsumerConfig{
		"its acknowledgement policy is AckNone: it must be explicit":        {AckPolicy: jetstream.AckNonePolicy},
		"its acknowledgement policy is AckAll":                              {AckPolicy: jetstream.AckAllPolicy},
		"it gives a message up after 5 deliveries (max_deliver)":            {MaxDeliver: 5},
		"it has its own delays (backoff)":                                   {BackOff: []time.Duration{time.Second, time.Minute}},
		"it delivers no bodies (headers_only)":                              {HeadersOnly: true},
		"its ack_wait 500ms is below 1s":                                    {AckWait: 500 * time.Millisecond},
		"its subjects are users.x, and Config.Subjects is empty (all)":      {FilterSubject: "users.x"},
		"its subjects are users.x, users.y, and Config.Subjects is empty (": {FilterSubjects: []string{"users.y", "users.x"}},
	} {
		cfg.Durable = strings.Map(func(r rune) rune {
			if r == ' ' || r == '.' || r == ':' || r == ',' {
				return '-'
			}
			return r
		}, want[:20]+fmt.Sprint(len(want)))
		if cfg.AckPolicy != jetstream.AckNonePolicy && cfg.AckPolicy != jetstream.AckAllPolicy || !strings.Contains(want, "policy") {
			cfg.AckPolicy = jetstream.AckExplicitPolicy
		}
		_, err := b.js.CreateConsumer(t.Context(), "USERS", cfg)
		require.NoError(t, err, want)
		err = run(t, pool, &effects{}, b.config(func(c *nats.Config) { c.Durable = cfg.Durable })).ends(t)
		require.ErrorIs(t, err, nats.ErrBadConsumer)
		require.ErrorContains(t, err, want)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	c := consumerOf(t, &effects{})
	for want, change := range map[string]func(*nats.Config){
		"field URL is empty":                                func(c *nats.Config) { c.URL = "" },
		"field URL is not a list of URLs":                   func(c *nats.Config) { c.URL = "nats://u:S3/CRET@a" },
		"field Stream is empty":                             func(c *nats.Config) { c.Stream = "" },
		`field Stream "a.b" is not a valid stream name`:     func(c *nats.Config) { c.Stream = "a.b" },
		`field Durable "a b" is not a valid name`:           func(c *nats.Config) { c.Durable = "a b" },
		"field Subjects has an empty subject":               func(c *nats.Config) { c.Subjects = []string{""} },
		"field MaxPending 100001 is not between 1 and 1000": func(c *nats.Config) { c.MaxPending = 100_001 },
		"field AckWait 1ms is below 1s":                     func(c *nats.Config) { c.AckWait = time.Millisecond },
		"field StartTimeout -1s is negative":                func(c *nats.Config) { c.StartTimeout = -time.Second },
	} {
		cfg := nats.Config{URL: "nats://a", Stream: "USERS"}
		change(&cfg)
		_, err := nats.New(pool, c, cfg)
		require.ErrorContains(t, err, "new NATS receiver: "+want)
		require.NotContains(t, err.Error(), "S3")
	}
	cfg := nats.Config{URL: "nats://user:S3CRET@a:4222", Stream: "USERS", Options: []natsgo.Option{natsgo.Token("S3CRET")}}
	r, err := nats.New(pool, c, cfg)
	require.NoError(t, err)
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "config", cfg, "receiver", r)
	encoded, err := json.Marshal(cfg)
	require.NoError(t, err)
	text := fmt.Sprintf("%v %+v %#v %v %#v", cfg, cfg, cfg, r, r) + log.String() + string(encoded)
	require.NotContains(t, text, "S3CRET")
	require.Contains(t, text, "a:4222")
	require.Contains(t, text, "nats.Receiver(USERS/projection)")
}
