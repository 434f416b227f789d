package nats

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxgen/outboxgen/internal/broker/lograte"
	"github.com/outboxgen/outboxgen/internal/broker/natsurl"
)

// connection is a connection to one of the servers. It remembers its last error.
type connection struct {
	*nats.Conn
	servers string // their addresses, without credentials
	log     *lograte.Limit
	connErr atomic.Pointer[error] // nil while connected
	// serverError is the last error that the server sent unasked, for example about a missing right.
	serverError atomic.Pointer[error]
}

// connect tries each server once. If none answers, it continues in the background.
func connect(cfg Config) (*connection, error) {
	c := &connection{servers: natsurl.WithoutCredentials(cfg.URL), log: lograte.New(cfg.Logger)}
	o := nats.GetDefaultOptions()
	o.Servers = natsurl.Servers(cfg.URL)
	o.Name = "outboxgen"
	o.ReconnectWait, o.ReconnectJitter = 250*time.Millisecond, 250*time.Millisecond
	o.PingInterval, o.MaxPingsOut = 10*time.Second, 2 // detects a connection that has become silent
	for _, option := range cfg.Options {
		if option == nil {
			continue
		}
		if err := option(&o); err != nil {
			return nil, err
		}
	}
	o.AllowReconnect, o.MaxReconnect, o.RetryOnFailedConnect, o.IgnoreAuthErrorAbort = true, -1, true, true
	o.ReconnectBufSize = -1 // otherwise events that were handed back would be sent later
	o.FlusherTimeout, o.ReconnectOnFlusherError = cfg.Timeout, true

	disconnected, failed, connected, reconnected, complained :=
		o.DisconnectedErrCB, o.ReconnectErrCB, o.ConnectedCB, o.ReconnectedCB, o.AsyncErrorCB
	o.DisconnectedErrCB = func(nc *nats.Conn, err error) {
		c.note("connection lost", err)
		if disconnected != nil {
			disconnected(nc, err)
		}
	}
	o.ReconnectErrCB = func(nc *nats.Conn, err error) {
		c.note("cannot connect", err)
		if failed != nil {
			failed(nc, err)
		}
	}
	o.ConnectedCB = func(nc *nats.Conn) {
		c.connErr.Store(nil)
		if connected != nil {
			connected(nc)
		}
	}
	o.ReconnectedCB = func(nc *nats.Conn) {
		c.connErr.Store(nil)
		if reconnected != nil {
			reconnected(nc)
		}
	}
	o.AsyncErrorCB = func(nc *nats.Conn, sub *nats.Subscription, err error) {
		if err != nil {
			c.serverError.Store(&err)
			c.log.Log(context.Background(), slog.LevelWarn, "nats connection: error from server", "servers", c.servers,
				"error", err)
		}
		if complained != nil {
			complained(nc, sub, err)
		}
	}
	var err error
	c.Conn, err = o.Connect()
	if _, unparsed := errors.AsType[*url.Error](err); unparsed { // it quotes the URL with its password
		err = errors.New("the address of a server is not a valid URL")
	}
	return c, err
}

// note remembers an error, and logs it if it differs from the last one and was not logged a moment ago.
func (c *connection) note(what string, err error) {
	if err == nil {
		return
	}
	if last := c.connErr.Swap(&err); last == nil || (*last).Error() != err.Error() {
		c.log.Log(context.Background(), slog.LevelWarn, "nats connection: "+what, "servers", c.servers, "error", err)
	}
}

// jetStream returns the JetStream client of the connection. p gets what becomes of messages.
func (c *connection) jetStream(cfg Config, p *Publisher) (jetstream.JetStream, error) {
	opts := []jetstream.JetStreamOpt{
		jetstream.WithPublishAsyncAckHandler(p.confirmedLater),
		jetstream.WithPublishAsyncErrHandler(p.refusedLater),
		jetstream.WithPublishAsyncTimeout(cfg.Timeout),
		jetstream.WithPublishAsyncMaxPending(1 << 20), // Config.Concurrency is the limit
	}
	if cfg.Domain != "" {
		return jetstream.NewWithDomain(c.Conn, cfg.Domain, opts...)
	}
	return jetstream.New(c.Conn, opts...)
}

// address returns the address of the connected server, or of all servers while there is no connection.
func (c *connection) address() string {
	if url := c.ConnectedUrlRedacted(); url != "" {
		return natsurl.WithoutCredentials(url)
	}
	return c.servers
}
