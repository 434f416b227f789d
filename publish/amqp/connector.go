package amqp

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/outboxgen/outboxgen/internal/broker/amqpurl"
	"github.com/outboxgen/outboxgen/internal/broker/lograte"
	"github.com/outboxgen/outboxgen/internal/call/backoff"
)

// The pauses between two rounds of attempts to connect, and the interval of heartbeats.
const (
	minPause  = 250 * time.Millisecond
	maxPause  = 2 * time.Second
	heartbeat = 5 * time.Second
)

// connector keeps a connection to one of the servers. It remembers the last error.
type connector struct {
	cfg     Config
	log     *lograte.Limit
	urls    []string
	servers string // their addresses, without credentials
	link    atomic.Pointer[link]
	connErr atomic.Pointer[error] // nil while connected
	done    chan struct{}
}

// connect tries each server once. Then it continues in the background until ctx ends.
func connect(ctx context.Context, cfg Config) *connector {
	c := &connector{
		cfg: cfg, log: lograte.New(cfg.Logger), servers: amqpurl.WithoutCredentials(cfg.URL), urls: amqpurl.Servers(cfg.URL),
		done: make(chan struct{}),
	}
	first := c.dial(ctx)
	c.link.Store(first)
	go c.run(ctx, first)
	return c
}

// current returns the connection, or nil.
func (c *connector) current() *link {
	if l := c.link.Load(); l != nil && !l.conn.IsClosed() {
		return l
	}
	return nil
}

// wait waits until everything has ended after the end of the context.
func (c *connector) wait() { <-c.done }

// run reconnects until ctx ends.
func (c *connector) run(ctx context.Context, l *link) {
	defer close(c.done)
	pause := minPause
	for {
		if l != nil {
			began := time.Now()
			c.note("connection lost", l.serve(ctx))
			c.link.Store(nil)
			if time.Since(began) > maxPause {
				pause = minPause
			}
		}
		backoff.Sleep(ctx, pause/2+rand.N(pause))
		if ctx.Err() != nil {
			return
		}
		pause = min(2*pause, maxPause)
		l = c.dial(ctx)
		c.link.Store(l)
	}
}

// dial tries each server once, in any order.
func (c *connector) dial(ctx context.Context) *link {
	for _, i := range rand.Perm(len(c.urls)) {
		l, err := c.open(ctx, c.urls[i])
		if err == nil {
			c.connErr.Store(nil)
			return l
		}
		if ctx.Err() != nil {
			return nil
		}
		c.note("cannot connect", err)
	}
	return nil
}

// open connects to a server.
func (c *connector) open(ctx context.Context, server string) (*link, error) {
	var raw *timedConn
	stop := func() bool { return true }
	cfg := amqp091.Config{
		SASL: c.cfg.SASL, TLSClientConfig: c.cfg.TLS.Clone(), Heartbeat: heartbeat,
		Properties: amqp091.NewConnectionProperties(),
		Dial: func(network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{Timeout: c.cfg.Timeout}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
			raw = &timedConn{Conn: conn, timeout: c.cfg.Timeout}
			return raw, conn.SetDeadline(time.Now().Add(c.cfg.Timeout)) // of the handshake
		},
	}
	cfg.Properties.SetClientConnectionName("outboxgen")
	conn, err := amqp091.DialConfig(server, cfg)
	stop()
	if _, unparsed := errors.AsType[*url.Error](err); unparsed { // it quotes the URL with its password
		err = errors.New("the address of a server is not a valid URL")
	}
	if err != nil {
		if raw != nil {
			_ = raw.Close()
		}
		return nil, err
	}
	return newLink(conn, raw), nil
}

// note remembers an error, and logs it if it differs from the last one and was not logged a moment ago.
func (c *connector) note(what string, err error) {
	if err == nil {
		return
	}
	if last := c.connErr.Swap(&err); last == nil || (*last).Error() != err.Error() {
		c.log.Log(context.Background(), slog.LevelWarn, "amqp connection: "+what, slog.String("servers", c.servers),
			slog.Any("error", err))
	}
}

// timedConn limits how long a write may take, so that a server that does not read cannot hold a writer.
type timedConn struct {
	net.Conn
	timeout time.Duration
}

// Write writes b or fails after the timeout.
func (c *timedConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.timeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
