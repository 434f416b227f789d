package nats

import (
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// connection to one of the servers, which remembers its last trouble.
type connection struct {
	*nats.Conn
	servers string // by their addresses, without credentials
	log     *slog.Logger
	trouble atomic.Pointer[error] // none while all is well
	// complaint is the last error that the server sent beside what was asked, as for lack of a right.
	complaint atomic.Pointer[error]
}

// connect tries each server once, and goes on in the background when none answers.
func connect(cfg Config) (*connection, error) {
	c := &connection{servers: withoutCredentials(cfg.URL), log: cfg.Logger}
	o := nats.GetDefaultOptions()
	o.Url = cfg.URL
	o.Name = "outboxgen"
	o.ReconnectWait, o.ReconnectJitter = 250*time.Millisecond, 250*time.Millisecond
	o.PingInterval, o.MaxPingsOut = 10*time.Second, 2 // finds a connection that went silent
	for _, option := range cfg.Options {
		if option == nil {
			continue
		}
		if err := option(&o); err != nil {
			return nil, err
		}
	}
	o.AllowReconnect, o.MaxReconnect, o.RetryOnFailedConnect, o.IgnoreAuthErrorAbort = true, -1, true, true
	o.ReconnectBufSize = -1 // else what was handed back would be sent after all
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
		c.trouble.Store(nil)
		if connected != nil {
			connected(nc)
		}
	}
	o.ReconnectedCB = func(nc *nats.Conn) {
		c.trouble.Store(nil)
		if reconnected != nil {
			reconnected(nc)
		}
	}
	o.AsyncErrorCB = func(nc *nats.Conn, sub *nats.Subscription, err error) {
		if err != nil {
			c.complaint.Store(&err)
			c.log.Warn("nats connection: complaint", "servers", c.servers, "error", err)
		}
		if complained != nil {
			complained(nc, sub, err)
		}
	}
	var err error
	c.Conn, err = o.Connect()
	if _, unparsed := errors.AsType[*url.Error](err); unparsed { // it quotes the URL, with its password
		err = errors.New("the address of a server is not a valid URL")
	}
	return c, err
}

// note remembers trouble, and logs it when it is news.
func (c *connection) note(what string, err error) {
	if err == nil {
		return
	}
	if last := c.trouble.Swap(&err); last == nil || (*last).Error() != err.Error() {
		c.log.Warn("nats connection: "+what, "servers", c.servers, "error", err)
	}
}

// jetStream returns what publishes and asks for streams.
func (c *connection) jetStream(cfg Config) (jetstream.JetStream, error) {
	opts := []jetstream.JetStreamOpt{
		jetstream.WithPublishAsyncTimeout(cfg.Timeout),
		jetstream.WithPublishAsyncMaxPending(1 << 20), // Config.Concurrency is the limit
	}
	if cfg.Domain != "" {
		return jetstream.NewWithDomain(c.Conn, cfg.Domain, opts...)
	}
	return jetstream.New(c.Conn, opts...)
}

// address is that of the server, or of all while there is none.
func (c *connection) address() string {
	if url := c.ConnectedUrlRedacted(); url != "" {
		return withoutCredentials(url)
	}
	return c.servers
}

// areURLs reports whether the client can parse a list of servers. Its own error would quote a password.
func areURLs(list string) bool {
	for one := range strings.SplitSeq(list, ",") {
		one = strings.TrimSpace(one)
		if !strings.Contains(one, "://") {
			one = "nats://" + one
		}
		u, err := url.Parse(one)
		// An unescaped slash in a password makes a host of what is before it.
		if err != nil || u.Hostname() == "" || strings.Contains(u.Path, "@") {
			return false
		}
	}
	return true
}

// withoutCredentials returns a list of URLs as a list of addresses.
func withoutCredentials(urls string) string {
	if !areURLs(urls) {
		return "[masked]"
	}
	var addresses []string
	for one := range strings.SplitSeq(urls, ",") {
		one = strings.TrimSpace(one)
		if at := strings.LastIndex(one, "@"); at >= 0 {
			one = one[at+1:]
		}
		if _, address, is := strings.Cut(one, "://"); is {
			one = address
		}
		addresses = append(addresses, one)
	}
	return strings.Join(addresses, ",")
}
