package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// askTimeout bounds an attempt to connect, and a short question to the server.
	askTimeout = 5 * time.Second
	// readTimeout is how long the answer with a batch of entries may take.
	readTimeout = 30 * time.Second
)

// servers returns the addresses of the servers, without credentials.
func (c Config) servers() string {
	if c.Options != nil {
		if slices.ContainsFunc(c.Options.Addrs, isURL) {
			return "[masked]"
		}
		return strings.Join(c.Options.Addrs, ",")
	}
	opts, err := parseURL(c.URL)
	if err != nil {
		return "[masked]"
	}
	return opts.Addr
}

func isURL(addr string) bool { return strings.Contains(addr, "://") || strings.Contains(addr, "@") }

// parseURL reads a URL. The client's own error would quote a password.
func parseURL(text string) (*goredis.Options, error) {
	u, err := url.Parse(text)
	// With an unescaped slash in a password, the part before it would be the host.
	if err != nil || strings.Contains(u.Path, "@") && u.Scheme != "unix" || u.Hostname() == "" && u.Scheme != "unix" {
		return nil, errors.New("is not a URL: percent-encode special characters in a user or password")
	}
	opts, err := goredis.ParseURL(text)
	if err != nil {
		return nil, errors.New("is not valid: use the form redis://user:password@host:port/db, with rediss for TLS")
	}
	return opts, nil
}

// secure reports whether the client speaks TLS.
func (c Config) secure() bool {
	return strings.HasPrefix(c.URL, "rediss:") || c.Options != nil && c.Options.TLSConfig != nil
}

// database is the number of the database.
func (c Config) database() int {
	if c.Options != nil {
		return c.Options.DB
	}
	opts, err := parseURL(c.URL)
	if err != nil {
		return 0
	}
	return opts.DB
}

// client returns a client that connects on first use. It never repeats a command by itself: a repeated read would pass
// over the entries whose answer got lost.
func (c Config) client(timeout time.Duration) (goredis.UniversalClient, error) {
	connections := 2*len(c.Streams) + 2
	if c.Options != nil {
		opts := *c.Options
		opts.Addrs = slices.Clone(opts.Addrs)
		opts.MaxRetries, opts.DialerRetries = -1, 1
		opts.DialTimeout, opts.ReadTimeout, opts.WriteTimeout, opts.PoolTimeout = askTimeout, timeout, timeout, timeout
		opts.ContextTimeoutEnabled = true
		opts.PoolSize, opts.MaxActiveConns, opts.PipelinePoolSize = connections, 0, -1
		opts.ReadOnly, opts.RouteByLatency, opts.RouteRandomly = false, false, false
		if opts.TLSConfig != nil {
			opts.TLSConfig = opts.TLSConfig.Clone()
		}
		opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		return goredis.NewUniversalClient(&opts), nil
	}
	opts, err := parseURL(c.URL)
	if err != nil {
		return nil, err
	}
	opts.MaxRetries, opts.DialerRetries = -1, 1
	opts.DialTimeout, opts.ReadTimeout, opts.WriteTimeout, opts.PoolTimeout = askTimeout, timeout, timeout, timeout
	opts.ContextTimeoutEnabled = true
	opts.PoolSize, opts.MaxActiveConns, opts.PipelinePoolSize = connections, 0, -1
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return goredis.NewClient(opts), nil
}

// node returns the client of the server that has a stream.
func node(ctx context.Context, client goredis.UniversalClient, stream string) (goredis.UniversalClient, error) {
	cluster, is := client.(*goredis.ClusterClient)
	if !is {
		return client, nil
	}
	return cluster.MasterForKey(ctx, stream)
}

// moved has a cluster's client ask again which server has what, after an error.
func moved(ctx context.Context, client goredis.UniversalClient) {
	if cluster, is := client.(*goredis.ClusterClient); is {
		cluster.ReloadState(ctx)
	}
}

// errNoGroup is the error of a group that does not exist, perhaps because its stream does not.
var errNoGroup = errors.New("the consumer group does not exist")

// refusals are the beginnings of the errors with which Redis refuses a connection or a command. To a command with many
// arguments from a client that has not authenticated it does not answer NOAUTH, but that the length is not allowed.
var refusals = []string{
	"NOAUTH", "WRONGPASS", "NOPERM", "ERR Protocol error: unauthenticated", "ERR AUTH", "ERR DB index", "ERR invalid DB",
	"ERR SELECT", "ERR Client sent AUTH", "DENIED",
}

// explain says which of our errors an error of Redis is. Errors that pass are returned as they are.
func explain(err error) error {
	if answer, answered := errors.AsType[goredis.Error](err); answered && !errors.Is(err, goredis.Nil) {
		text := strings.TrimPrefix(answer.Error(), "EXECABORT Transaction discarded because of: ")
		if strings.HasPrefix(text, "WRONGTYPE") {
			return fmt.Errorf("%w: rename it, or use another stream: %w", ErrNotStream, err)
		}
		if strings.HasPrefix(text, "NOGROUP") || strings.HasPrefix(text, "ERR no such key") {
			return fmt.Errorf("%w: %w", errNoGroup, err)
		}
		if strings.HasPrefix(text, "ERR The XGROUP subcommand requires the key to exist") {
			return ErrNoStream
		}
		for _, beginning := range refusals {
			if strings.HasPrefix(text, beginning) {
				check := "check the user, password and database in Config.URL or Config.Options"
				if beginning == "NOPERM" {
					check = "allow that for the user of Config.URL or Config.Options"
				}
				return fmt.Errorf("%w: %w: %s", ErrRefused, err, check)
			}
		}
		return err
	}
	var unverified *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var network *net.OpError
	var check string
	switch {
	case errors.As(err, &unverified):
		check = "check the names in Config.URL or Addrs of Config.Options, and TLSConfig of Config.Options"
	case errors.As(err, &record):
		check = "check the port, and use redis:// in Config.URL, or no TLSConfig in Config.Options, if the server has no TLS"
	case errors.As(err, &network) && network.Op == "remote error": // a TLS alert
		check = "check the client's certificate in TLSConfig of Config.Options"
	default:
		return err
	}
	return fmt.Errorf("%w: %w: %s", ErrTLS, err, check)
}
