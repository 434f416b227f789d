// Package redis publishes events to streams of Redis or Valkey. The stream is the event's destination; an event is one
// entry (XADD).
//
//	publisher, err := redis.New(redis.Config{URL: "redis://user:password@redis-1:6379/0"})
//	...
//	defer publisher.Close() // after Run of the dispatcher or listener has returned
//	d, err := events.NewUsersDispatcher(pool, queue.Config{
//		Publishers: map[string]publish.Publisher{"redis": publisher},
//	})
//
// # Entries
//
// An entry is a CloudEvent, in binary mode unless Config.Encoder says otherwise. CloudEvents has no binding for Redis,
// so the fields are those of the Kafka binding: attributes have names that begin with ce_, content-type and the event's
// own headers have their own names. The field data is the body. Headers of an event that are called data or
// content-type, or begin with ce_, are left out.
//
// Streams must exist, unless Config.CreateStreams is set: a misspelt stream would take events that nobody reads. XGROUP
// CREATE with MKSTREAM creates a stream with its first consumer group.
//
// # Order and duplicates
//
// Events with one key are sent one after another, each after Redis has answered for the one before. So each event costs
// its key a round trip. Events with different keys are sent together, in pipelines of up to 500; to a cluster
// concurrently, each by itself, so that a node that is away does not hold up the others.
//
// An event whose answer got lost is sent again and may be stored twice, which the consumer's inbox notices. The first
// copy of an event never comes after an event that follows it.
//
// # What Redis stores permanently
//
// Redis answers before it is certain that an entry survives. A crash of the server loses what was not yet in its
// append-only file, and a failover loses what the replica did not have. The publisher cannot notice either. So for
// events that must not be lost:
//
//   - appendonly yes, with appendfsync always (nothing is lost when the machine crashes) or everysec (about a second
//     is);
//   - Config.Replicas of 1 or more, if there are replicas: the publisher waits until so many of them have the entry.
//     That makes a loss by failover unlikely; Redis does not exclude it;
//   - maxmemory-policy noeviction: with another policy Redis may remove whole streams;
//   - no MaxLen, or one that is larger than what consumers may be behind.
//
// # Failures
//
// The client writes failed attempts to connect to its own logger, which is the standard error of the process unless
// SetLogger of go-redis says otherwise.
//
// The outcome of an event that Redis does not take (P permanent, U unavailable, B broker unavailable, A a failed
// attempt):
//
//	P  larger than Config.MaxBytes, or no destination
//	U  no such stream, or a key that is not a stream (WRONGTYPE), however long, or P after Config.NoStreamTimeout
//	B  no server, a lost connection, TLS, credentials (NOAUTH, WRONGPASS)
//	B  OOM, READONLY, LOADING, MASTERDOWN, MISCONF, NOREPLICAS, BUSY; in a cluster, where that is one of the nodes, U
//	U  NOPERM: no right to the stream or to XADD
//	U  CLUSTERDOWN, MOVED, TRYAGAIN: the cluster is being changed or repaired
//	U  no answer within Config.Timeout, or fewer than Config.Replicas have the entry; it may have been stored
//	A  the context of Publish has ended; the event may have been stored, else it is outbox.ErrNotSent
//	A  any other error of Redis
package redis

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/internal/flight"
	"github.com/outboxgen/outboxgen/publish/internal/missing"
)

// ErrClosed is the error of Publish after a call of Close, marked as unavailable.
var ErrClosed = errors.New("the publisher is closed")

// Config says where a Publisher sends events and how. URL or Options is required.
type Config struct {
	// URL is the server, as redis://user:password@host:port/db, or rediss:// for TLS, or unix://. Special characters of a
	// user or a password are percent-encoded.
	URL string
	// Options are used instead of URL, for a cluster or for Sentinel: Addrs, MasterName, Username, Password, TLSConfig and
	// so on. They cannot change what the promises of this package depend on: the publisher sets retries, timeouts, the
	// size of the pool and the routing to replicas.
	Options *goredis.UniversalOptions
	// Encoder makes entries of events; nil means CloudEvents in binary mode.
	Encoder publish.Encoder
	// CreateStreams lets Redis create a stream with its first event. Otherwise streams must exist.
	CreateStreams bool
	// NoStreamTimeout is how long a stream may be missing before its events are refused permanently, as dead letters. 0
	// means however long: they are unavailable and wait, so that neither an outage nor a stream that is created late makes
	// dead letters. A negative value refuses them immediately.
	NoStreamTimeout time.Duration
	// MaxLen is the approximate number of entries to which each event trims its stream (MAXLEN ~). Redis then removes the
	// oldest ones, read or not. 0 means that nothing is removed.
	MaxLen int64
	// Replicas is how many replicas must have an entry before it counts as delivered (WAIT), within half of Timeout. 0
	// means none: then a failover may lose entries. The maximum is 100.
	Replicas int
	// MaxBytes is the maximum size of a message, with its fields. A larger one is refused permanently. 0 means 512 MB,
	// which is the default of Redis for one value (proto-max-bulk-len).
	MaxBytes int
	// Timeout is how long Redis may take to answer before a destination counts as unavailable, and how long it may take to
	// connect. 0 means 5 s.
	Timeout time.Duration
	// Concurrency is how many events of one call of Publish may be on their way concurrently, each with a different key.
	// Up to 500 share a pipeline; in a cluster each has a connection. 0 means 1,000, or 64 with several Addrs; the maximum
	// is 1,000.
	Concurrency int
}

// shown is the part of a Config that may be printed.
type shown struct {
	Servers                  string
	CreateStreams            bool
	NoStreamTimeout, Timeout time.Duration
	MaxLen                   int64
	Replicas, MaxBytes       int
	Concurrency              int
}

func (cfg Config) shown() shown {
	return shown{
		Servers: cfg.servers(), CreateStreams: cfg.CreateStreams, NoStreamTimeout: cfg.NoStreamTimeout, Timeout: cfg.Timeout,
		MaxLen: cfg.MaxLen, Replicas: cfg.Replicas, MaxBytes: cfg.MaxBytes, Concurrency: cfg.Concurrency,
	}
}

// servers returns the addresses of the servers, without credentials.
func (cfg Config) servers() string {
	if cfg.Options != nil {
		if slices.ContainsFunc(cfg.Options.Addrs, isURL) {
			return "[masked]"
		}
		return strings.Join(cfg.Options.Addrs, ",")
	}
	opts, err := parseURL(cfg.URL)
	if err != nil {
		return "[masked]"
	}
	return opts.Addr
}

// Format writes the configuration without credentials, for any verb.
func (cfg Config) Format(w fmt.State, _ rune) { _, _ = fmt.Fprintf(w, "%+v", cfg.shown()) }

// LogValue logs the configuration without credentials.
func (cfg Config) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(cfg)) }

// MarshalJSON writes the configuration without credentials; it cannot be read back.
func (cfg Config) MarshalJSON() ([]byte, error) { return json.Marshal(cfg.shown()) }

func (cfg Config) withDefaults() Config {
	cfg.Timeout = cmp.Or(cfg.Timeout, 5*time.Second)
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, 512<<20)
	if cfg.Concurrency == 0 {
		cfg.Concurrency = 1000
		if cfg.Options != nil && len(cfg.Options.Addrs) > 1 {
			cfg.Concurrency = 64
		}
	}
	return cfg
}

func (cfg Config) validate() error {
	switch {
	case cfg.URL == "" && cfg.Options == nil:
		return errors.New("field URL is empty")
	case cfg.URL != "" && cfg.Options != nil:
		return errors.New("fields URL and Options cannot be combined")
	case cfg.Options != nil && (len(cfg.Options.Addrs) == 0 || slices.Contains(cfg.Options.Addrs, "")):
		return errors.New("field Options has no addresses: set Addrs")
	case cfg.Options != nil && slices.ContainsFunc(cfg.Options.Addrs, isURL):
		return errors.New("field Options has a URL or a user in Addrs: use host:port, and Username and Password")
	case cfg.Timeout < 0:
		return fmt.Errorf("field Timeout %s is negative", cfg.Timeout)
	case cfg.MaxLen < 0:
		return fmt.Errorf("field MaxLen %d is negative", cfg.MaxLen)
	case cfg.Replicas < 0 || cfg.Replicas > 100:
		return fmt.Errorf("field Replicas %d is not between 0 and 100", cfg.Replicas)
	case cfg.MaxBytes < 0:
		return fmt.Errorf("field MaxBytes %d is negative", cfg.MaxBytes)
	case cfg.Concurrency < 1 || cfg.Concurrency > 1000:
		return fmt.Errorf("field Concurrency %d is not between 1 and 1000", cfg.Concurrency)
	}
	if cfg.URL != "" {
		if _, err := parseURL(cfg.URL); err != nil {
			return fmt.Errorf("field URL %w", err)
		}
	}
	return nil
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

// connections is the maximum number of connections to a server, as a multiple of Config.Concurrency: that many calls of
// Publish do not wait for each other.
const connections = 16

// client returns the client. It connects on first use.
func (cfg Config) client() (goredis.UniversalClient, error) {
	if cfg.Options != nil {
		opts := *cfg.Options
		opts.Addrs = slices.Clone(opts.Addrs)
		opts.MaxRetries, opts.DialerRetries = -1, 1
		opts.DialTimeout, opts.ReadTimeout = cfg.Timeout, cfg.Timeout
		opts.WriteTimeout, opts.PoolTimeout = cfg.Timeout, cfg.Timeout
		opts.ContextTimeoutEnabled = true
		opts.PoolSize, opts.MaxActiveConns, opts.PipelinePoolSize = connections*cfg.Concurrency, 0, -1
		opts.ReadOnly, opts.RouteByLatency, opts.RouteRandomly = false, false, false
		opts.TLSConfig = cloned(opts.TLSConfig)
		opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		return goredis.NewUniversalClient(&opts), nil
	}
	opts, err := parseURL(cfg.URL)
	if err != nil {
		return nil, err
	}
	opts.MaxRetries, opts.DialerRetries = -1, 1
	opts.DialTimeout, opts.ReadTimeout = cfg.Timeout, cfg.Timeout
	opts.WriteTimeout, opts.PoolTimeout = cfg.Timeout, cfg.Timeout
	opts.ContextTimeoutEnabled = true
	opts.PoolSize, opts.MaxActiveConns, opts.PipelinePoolSize = connections*cfg.Concurrency, 0, -1
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return goredis.NewClient(opts), nil
}

func cloned(cfg *tls.Config) *tls.Config {
	if cfg == nil {
		return nil
	}
	return cfg.Clone()
}

// Publisher publishes events to Redis. It implements publish.Publisher and is safe for concurrent use.
type Publisher struct {
	cfg     Config
	servers string
	client  goredis.UniversalClient
	cluster *goredis.ClusterClient // nil without a cluster
	streams missing.Destinations
	closing context.Context
	close   context.CancelFunc
	calls   sync.RWMutex   // read-locked by running calls of Publish
	sends   sync.WaitGroup // commands on their way
	lines   pipelines
	command []any // how the command of each event begins; the stream is at streamAt
}

var _ publish.Publisher = (*Publisher)(nil)

// Format writes where the publisher sends events, without credentials, for any verb.
func (p *Publisher) Format(w fmt.State, _ rune) {
	_, _ = fmt.Fprintf(w, "redis.Publisher(%s)", p.servers)
}

// LogValue logs the publisher as Format writes it.
func (p *Publisher) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(p)) }

// New checks cfg and returns a Publisher, which connects when it sends. An error means that the configuration is not
// valid. The caller must Close the Publisher after Run of the dispatcher or listener has returned.
func New(cfg Config) (*Publisher, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure Redis publisher: %w", err)
	}
	p := &Publisher{cfg: cfg, servers: cfg.servers(), command: cfg.command()}
	p.streams.Timeout = cfg.NoStreamTimeout
	p.closing, p.close = context.WithCancel(context.Background())
	var err error
	if p.client, err = cfg.client(); err != nil {
		return nil, fmt.Errorf("configure Redis publisher: %w", err)
	}
	p.cluster, _ = p.client.(*goredis.ClusterClient)
	return p, nil
}

// Publish implements publish.Publisher. The package comment lists what each error of Redis means for an event.
func (p *Publisher) Publish(ctx context.Context, events []publish.Outgoing) []error {
	p.calls.RLock()
	defer p.calls.RUnlock()
	return flight.Send(ctx, p.closing, events, p.cfg.Concurrency, p.newSending(ctx, events))
}

// Close ends the running calls of Publish, waits for them and disconnects. The events of these calls count as
// unavailable, although they may have been stored. A second call does nothing.
func (p *Publisher) Close() {
	p.close()
	p.calls.Lock()
	defer p.calls.Unlock()
	_ = p.client.Close() // an error means that it was closed already, or that a connection is lost
	p.sends.Wait()
}
