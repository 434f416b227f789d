package amqp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/outboxgen/outboxgen/internal/broker/amqpurl"
	"github.com/outboxgen/outboxgen/internal/call/backoff"
)

const (
	// askTimeout bounds a question to a server.
	askTimeout = 5 * time.Second
	// closeTimeout is how long the server may take to answer that we close something.
	closeTimeout = time.Second
	// heartbeat is the interval of heartbeats, which detect a connection that has become silent.
	heartbeat = 5 * time.Second
	// minPause and maxPause are the pauses between two attempts.
	minPause = 250 * time.Millisecond
	maxPause = 2 * time.Second
)

// errLost is the error of a connection that has ended without a reason.
var errLost = errors.New("the connection was lost")

// connection is a connection to one of the servers.
type connection struct {
	*amqp091.Connection
	raw  net.Conn
	down chan struct{} // closed when the connection has ended
	err  error         // why; to be read after down is closed
}

// dial tries each server once, in any order. If none takes the connection, refusal is an error of final, and all says
// whether that is what every server says.
func (r *Receiver) dial(ctx context.Context) (c *connection, err, refusal error, all bool) {
	servers := amqpurl.Servers(r.cfg.URL)
	all = true
	for _, i := range rand.Perm(len(servers)) {
		c, one := r.open(ctx, servers[i])
		if one == nil {
			return c, nil, nil, false
		}
		err = one
		if final := final(one); final != nil {
			refusal = final
		} else {
			all = false
		}
	}
	return nil, err, refusal, all
}

// open connects to a server.
func (r *Receiver) open(ctx context.Context, server string) (*connection, error) {
	var raw *timedConn
	stop := func() bool { return true }
	cfg := amqp091.Config{
		SASL: r.cfg.SASL, TLSClientConfig: r.cfg.TLS.Clone(), Heartbeat: heartbeat,
		Properties: amqp091.NewConnectionProperties(),
		Dial: func(network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{Timeout: askTimeout}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
			raw = &timedConn{Conn: conn}
			return raw, conn.SetDeadline(time.Now().Add(askTimeout)) // of the handshake
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
	c := &connection{Connection: conn, raw: raw, down: make(chan struct{}), err: errLost}
	closed := conn.NotifyClose(make(chan *amqp091.Error, 1))
	go func() {
		defer close(c.down)
		if err, abnormal := <-closed; abnormal {
			c.err = err
		}
	}()
	return c, nil
}

// close ends the connection. It does not wait long for the server.
func (c *connection) close() {
	timer := time.AfterFunc(closeTimeout, func() { _ = c.raw.Close() })
	_ = c.Connection.Close() // an error means that it was closed already, or that the server did not answer
	timer.Stop()
	_ = c.raw.Close()
	<-c.down
}

// closeChannel ends a channel. If the server does not answer soon, the connection ends.
func (c *connection) closeChannel(channel *amqp091.Channel) {
	timer := time.AfterFunc(closeTimeout, func() { _ = c.raw.Close() })
	defer timer.Stop()
	_ = channel.Close() // an error means that it was closed already, or that the server did not answer
}

// inspect asks for a queue. That needs no right.
func (c *connection) inspect(queue string) (amqp091.Queue, error) {
	timer := time.AfterFunc(askTimeout, func() { _ = c.raw.Close() })
	defer timer.Stop()
	channel, err := c.Channel()
	if err != nil {
		return amqp091.Queue{}, err
	}
	defer func() { _ = channel.Close() }()
	return channel.QueueDeclarePassive(queue, true, false, false, false, nil)
}

// timedConn limits how long a write may take, so that a server that does not read cannot hold a writer.
type timedConn struct{ net.Conn }

// Write writes b or fails after the timeout.
func (c *timedConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(askTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// connect waits for a connection. If there was one before, it waits for servers without a limit, and for credentials or
// TLS up to Config.StartTimeout. Otherwise it waits up to Config.StartTimeout for a server, and does not wait for what
// waiting does not change, unless there are other servers.
func (r *Receiver) connect(ctx context.Context, before bool) (*connection, error) {
	began := time.Now()
	refusals := 0 // in a row
	var refused time.Time
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		c, err, refusal, all := r.dial(ctx)
		switch {
		case c != nil && ctx.Err() != nil:
			c.close()
			return nil, context.Cause(ctx)
		case c != nil:
			return c, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case refusal == nil:
			refusals = 0
		case refusals == 0:
			refusals, refused = 1, time.Now()
		default:
			refusals++
		}
		r.limit.Log(ctx, slog.LevelWarn, "amqp connection: cannot connect", "servers", r.servers, "error", err)
		// A server that stops in the middle of a login looks like one that refuses it, so one refusal is not enough.
		switch again := refusals > 1; {
		case again && before && time.Since(refused) > r.cfg.StartTimeout,
			again && !before && (all || time.Since(began) > askTimeout):
			return nil, fmt.Errorf("connect to %s: %w", r.servers, refusal)
		case !before && time.Since(began) > r.cfg.StartTimeout:
			return nil, fmt.Errorf("connect to %s: %w: %w", r.servers, ErrUnreachable, err)
		}
		backoff.Sleep(ctx, pause/2+rand.N(pause))
	}
}

// final returns an error that wraps ErrRefused or ErrTLS if a connection has failed with something that waiting does
// not change. Otherwise it returns nil.
func final(err error) error {
	if reply, is := errors.AsType[*amqp091.Error](err); is {
		switch {
		case reply.Code == amqp091.AccessRefused:
			return fmt.Errorf("%w: %w: check the user and password in Config.URL, or Config.SASL", ErrRefused, err)
		// The same code says that the virtual host starts, or that a limit of connections is reached.
		case reply.Code == amqp091.NotAllowed && !strings.Contains(reply.Reason, "is down") &&
			!strings.Contains(reply.Reason, "limit"):
			return fmt.Errorf("%w: %w: check the virtual host in Config.URL, and the user's rights to it", ErrRefused, err)
		}
	}
	_, unverified := errors.AsType[*tls.CertificateVerificationError](err)
	_, name := errors.AsType[x509.HostnameError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	network, is := errors.AsType[*net.OpError](err)
	var check string
	switch {
	case unverified, name:
		check = "check the names in Config.URL, and Config.TLS"
	case record, errors.Is(err, amqp091.ErrSyntax), errors.Is(err, amqp091.ErrFrame):
		check = "check the ports in Config.URL, and amqp or amqps"
	case is && network.Op == "remote error": // a TLS alert
		check = "check the certificate of the client in Config.TLS"
	default:
		return nil
	}
	return fmt.Errorf("%w: %w: %s", ErrTLS, err, check)
}
