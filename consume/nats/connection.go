package nats

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxgen/outboxgen/internal/broker/lograte"
	"github.com/outboxgen/outboxgen/internal/broker/natsurl"
)

// askTimeout bounds a question to the server.
const askTimeout = 5 * time.Second

// connection is a connection to one of the servers. It remembers its last error.
type connection struct {
	*nats.Conn
	servers string // their addresses, without credentials
	log     *lograte.Limit
	connErr atomic.Pointer[error] // nil while connected
	// serverError is the last error that the server sent unasked, for example about a missing right.
	serverError atomic.Pointer[error]
	complained  chan struct{} // has an element after the server has refused something
	allowed     atomic.Bool   // the server has taken an acknowledgement

	mu      sync.Mutex
	refusal refusal
	call    func() // when the server refuses something
}

// refusal is a missing right that the server complains about.
type refusal struct {
	err         error
	first, last time.Time
}

// connect tries each server once. If none answers, it continues in the background.
func connect(cfg Config, log *slog.Logger, limit *lograte.Limit) (*connection, error) {
	c := &connection{servers: natsurl.WithoutCredentials(cfg.URL), log: limit, complained: make(chan struct{}, 1)}
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
	o.ReconnectBufSize = -1 // an acknowledgement that waits for a connection would come at the wrong time

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
		log.Info("nats connection: connected again", "servers", c.servers)
		if reconnected != nil {
			reconnected(nc)
		}
	}
	o.AsyncErrorCB = func(nc *nats.Conn, sub *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			c.refused(err, time.Now())
		}
		if last := c.serverError.Swap(&err); err != nil && (last == nil || (*last).Error() != err.Error()) {
			c.log.Log(context.Background(), slog.LevelWarn, "nats connection: error from server", "servers", c.servers,
				"error", err)
		}
		if complained != nil {
			complained(nc, sub, err)
		}
	}
	var err error
	c.Conn, err = o.Connect()
	var unparsed *url.Error
	if errors.As(err, &unparsed) { // it quotes the URL with its password
		err = errors.New("the address of a server is not a valid URL")
	}
	return c, err
}

// refused notes that the server has refused something.
func (c *connection) refused(err error, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refusal.err == nil {
		c.refusal.first = now
	}
	c.refusal.err, c.refusal.last = err, now
	if c.call != nil {
		c.call()
	}
	select {
	case c.complained <- struct{}{}:
	default:
	}
}

// onRefusal has call called when the server refuses something, until forget is called.
func (c *connection) onRefusal(call func()) (forget func()) {
	set := func(call func()) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.call = call
	}
	set(call)
	return func() { set(nil) }
}

// refusedRight is the error for a right that is missing.
func refusedRight(err error) error {
	return fmt.Errorf("%w: %w: allow that for the user of Config.URL or Config.Options", ErrRefused, err)
}

// refusedSince returns the refusal since a time, if there is one.
func (c *connection) refusedSince(since time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refusal.err == nil || c.refusal.last.Before(since) {
		return nil
	}
	return refusedRight(c.refusal.err)
}

// refusedFor returns an error if the server has refused something again and again for so long. A refusal is over when
// none came for the time quiet.
func (c *connection) refusedFor(limit, quiet time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	switch {
	case c.refusal.err == nil:
		return nil
	case now.Sub(c.refusal.last) > quiet:
		c.refusal = refusal{}
		return nil
	case now.Sub(c.refusal.first) < limit:
		return nil
	}
	return refusedRight(c.refusal.err)
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

// jetStream returns the JetStream client of the connection.
func (c *connection) jetStream(cfg Config) (jetstream.JetStream, error) {
	if cfg.Domain != "" {
		return jetstream.NewWithDomain(c.Conn, cfg.Domain)
	}
	return jetstream.New(c.Conn)
}

// await waits until there is a connection. It does not wait for what waiting does not change, unless there are other
// servers.
func (c *connection) await(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); !c.IsConnected(); {
		c.note("cannot connect", c.LastError()) // the client tells nobody why an attempt has failed after the first
		last := c.connErr.Load()
		if last != nil && final(*last) != nil && (len(c.Servers()) == 1 || time.Since(began) > askTimeout) {
			return errNotConnected
		}
		select {
		case <-ctx.Done():
			return errNotConnected
		case <-tick.C:
		}
	}
	return nil
}

var errNotConnected = errors.New("not connected")

// watch calls lost when there has been no connection for a moment, and returns then or when ctx ends. A pull that is
// under way when the connection is lost waits for the next one, however long, and so would not see that it is refused.
func (c *connection) watch(ctx context.Context, lost context.CancelCauseFunc) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for away := 0; away < 2; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if away++; c.IsConnected() {
			away = 0
		}
	}
	lost(errNotConnected)
}

// final returns an error that wraps ErrRefused or ErrTLS if a connection has failed with something that waiting does
// not change. Otherwise it returns nil.
func final(err error) error {
	for _, refusal := range [...]error{
		nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired,
	} {
		// while it connects, the client has another error with that text
		if errors.Is(err, refusal) || strings.EqualFold(err.Error(), refusal.Error()) {
			return fmt.Errorf("%w: %w: check the user and password in Config.URL, or the credentials in Config.Options",
				ErrRefused, refusal)
		}
	}
	var unverified *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var network *net.OpError
	var check string
	switch {
	case errors.As(err, &unverified):
		check = "check the names in Config.URL, and nats.RootCAs or nats.Secure in Config.Options"
	case errors.Is(err, nats.ErrSecureConnWanted), errors.Is(err, nats.ErrSecureConnRequired), errors.As(err, &record):
		check = "check the port, and nats.Secure in Config.Options"
	case errors.As(err, &network) && network.Op == "remote error": // a TLS alert
		check = "check nats.ClientCert in Config.Options"
	default:
		return nil
	}
	return fmt.Errorf("%w: %w: %s", ErrTLS, err, check)
}

// explain adds what the connection knows to an error of a question that was asked at a time, and says which of our
// errors it is.
func (c *connection) explain(err error, asked time.Time) error {
	if connErr := c.connErr.Load(); connErr != nil && !c.IsConnected() {
		if err := final(*connErr); err != nil {
			return err
		}
		return fmt.Errorf("%w: %w", ErrUnreachable, *connErr)
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return ErrNoStream
	}
	unanswered := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders) ||
		errors.Is(err, jetstream.ErrNoHeartbeat) || errors.Is(err, nats.ErrPermissionViolation)
	if refused := c.refusedSince(asked); refused != nil && unanswered {
		return refused
	}
	if unanswered || errors.Is(err, errNotConnected) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) ||
		errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return err
}
