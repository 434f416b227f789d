package amqp_test

import (
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/amqp"
	"github.com/outboxgen/outboxgen/internal/testing/brokertest"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestMissingQueue: a queue that does not exist is an error that names it. One that is created a little late is none.
func TestMissingQueue(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t, classic), database(t)
	r := run(t, pool, &effects{}, b.config(shortly, func(c *amqp.Config) { c.Queue = "missing" }))
	err := r.ends(t)
	require.ErrorIs(t, err, amqp.ErrNoQueue)
	require.ErrorContains(t, err, "consume queue missing: the queue does not exist: create it, or correct Config.Queue: ")
	_, err = r.Lag(t.Context())
	require.ErrorIs(t, err, amqp.ErrNoQueue)
	require.ErrorContains(t, err, "read lag of missing at 127.0.0.1:")

	b.remove()
	var log logs
	late := run(t, pool, &effects{}, b.config(log.logger))
	log.said(t, "the queue does not exist: messages wait")
	b.declare()
	b.put(1, 1, "a")
	settlesAt(t, pool, 1)
	log.said(t, "the queue exists again")
	require.NoError(t, late.stop())
}

// TestDeletedQueue: a queue that is deleted while it is read, and created again, is read again. If it stays away, Run ends.
func TestDeletedQueue(t *testing.T) {
	t.Parallel()
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, pool := newBroker(t, kind), database(t)
			var log logs
			r := run(t, pool, &effects{}, b.config(shortly, log.logger))
			b.put(1, 10, "a")
			settlesAt(t, pool, 10)
			b.remove()
			log.said(t, "the queue does not exist: messages wait")
			b.declare()
			b.put(11, 20, "a")
			settlesAt(t, pool, 20)
			requireSteps(t, pool, 20, "a")
			b.remove()
			require.ErrorIs(t, r.ends(t), amqp.ErrNoQueue)
		})
	}
}

// TestRefused: wrong credentials, an unknown virtual host and a missing right are errors that say what is refused, and show no
// password. They end Run long before the StartTimeout.
func TestRefused(t *testing.T) {
	t.Parallel()
	b := newBroker(t, classic)
	b.put(1, 3, "a")
	user := "u-" + uuid.NewString()
	for _, args := range [][]string{{"add_user", user, user}, {"set_permissions", user, "", "", "^orders$"}} {
		_, err := b.Control(args...)
		require.NoError(t, err)
	}
	for name, test := range map[string]struct{ url, want string }{
		"password": {strings.Replace(b.URL("guest"), ":guest@", ":S3CRET@", 1), "check the user and password in Config.URL"},
		"user":     {strings.Replace(b.URL("nobody"), ":nobody@", ":S3CRET@", 1), "check the user and password in Config.URL"},
		"vhost":    {b.URL("guest") + "nowhere", "check the virtual host in Config.URL, and the user's rights to it"},
		"right":    {b.URL(user), "allow the user of Config.URL to read the queue"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log logs
			err := run(t, database(t), &effects{}, configOf(test.url, b.queue, log.logger, func(c *amqp.Config) {
				c.StartTimeout = 10 * pgtest.Patience
			})).ends(t)
			require.ErrorIs(t, err, amqp.ErrRefused)
			require.ErrorContains(t, err, "consume queue "+b.queue+": ")
			require.ErrorContains(t, err, b.Addr()+": the server refuses access: ")
			require.ErrorContains(t, err, test.want)
			require.NotContains(t, err.Error()+log.String(), "S3CRET")
		})
	}
}

// TestRights: a user who may only read suffices.
func TestRights(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t, quorum), database(t)
	b.put(1, 20, "a")
	var log logs
	r := run(t, pool, &effects{}, configOf(b.URL("reader"), b.queue, log.logger))
	settlesAt(t, pool, 20)
	_, err := r.Lag(t.Context())
	require.NoError(t, err)
	require.NoError(t, r.stop())
	require.NotContains(t, log.String(), "level=WARN")
	b.left(0)
}

// TestNoTLS: a server that does not speak TLS is an error at once, which says what to check.
func TestNoTLS(t *testing.T) {
	t.Parallel()
	b := newBroker(t, classic)
	url := strings.Replace(b.URL("guest"), "amqp://", "amqps://", 1)
	err := run(t, database(t), &effects{}, configOf(url, b.queue, func(c *amqp.Config) { c.StartTimeout = 10 * pgtest.Patience })).ends(t)
	require.ErrorIs(t, err, amqp.ErrTLS)
	require.ErrorContains(t, err, "check the ports in Config.URL, and amqp or amqps")
}

// TestUnreachable: at the start, a server that does not answer is an error. It is none later, however long that lasts.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t, classic), database(t)
	proxy := brokertest.NewProxy(t, b.Addr())
	proxy.Cut(true)
	r := run(t, pool, &effects{}, configOf(proxy.URL("guest"), b.queue, shortly))
	err := r.ends(t)
	require.ErrorIs(t, err, amqp.ErrUnreachable)
	_, is := errors.AsType[*net.OpError](err)
	require.True(t, is, err)
	_, err = r.Lag(t.Context())
	require.ErrorIs(t, err, amqp.ErrUnreachable)

	proxy.Up()
	b.put(1, 1, "a")
	r = run(t, pool, &effects{}, configOf(proxy.URL("guest"), b.queue, shortly))
	settlesAt(t, pool, 1)
	proxy.Cut(true)
	<-time.After(3 * time.Second) // longer than the StartTimeout
	proxy.Up()
	b.put(2, 2, "a")
	settlesAt(t, pool, 2)
	require.NoError(t, r.stop())
}

// TestKeyFails: a Config.Key that panics, or ends its goroutine, ends Run with an error, and its messages stay.
func TestKeyFails(t *testing.T) {
	t.Parallel()
	for how, fail := range map[string]func(){"panicked: no key": func() { panic("no key") }, "called runtime.Goexit": runtime.Goexit} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			b, pool := newBroker(t, classic), database(t)
			b.put(1, 3, "a")
			err := run(t, pool, &effects{}, b.config(func(c *amqp.Config) {
				c.Key = func(consume.Event, string) string { fail(); return "" }
			})).ends(t)
			require.ErrorContains(t, err, "consume queue "+b.queue+": Config.Key "+how)
			b.left(3)
			run(t, pool, &effects{}, b.config())
			settlesAt(t, pool, 3)
		})
	}
}

// TestRunning: a second Run of the same receiver is refused, and does not disturb the first.
func TestRunning(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t, classic), database(t)
	b.put(1, 1, "a")
	r := run(t, pool, &effects{}, b.config())
	settlesAt(t, pool, 1)
	require.ErrorIs(t, r.Run(t.Context()), amqp.ErrRunning)
	b.put(2, 2, "a")
	settlesAt(t, pool, 2)
	require.NoError(t, r.stop())
}
