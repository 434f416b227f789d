// Package webhook receives events by HTTP POST and applies the effect of each event exactly once. It is the other side
// of publish/webhook, and of any sender of CloudEvents or plain JSON that signs as Standard Webhooks specifies
// (https://www.standardwebhooks.com).
//
//	consumer, err := userevents.NewUserConsumer(ib, cards{})
//	...
//	handler, err := webhook.Handler(webhook.Config{
//		DB: pool, Consumer: consumer, Secrets: []string{os.Getenv("USERS_SECRET")},
//	})
//	...
//	mux.Handle("POST /events", handler)
//
// # Order and duplicates
//
// A request is answered with 204 after the effect and the record in the inbox have been committed in one transaction.
// An event that comes again is answered with 204 too, and has no second effect, also if both requests run concurrently.
// The publisher sends the next event of a key after the 204 of the one before, so the effects of a key keep its order.
//
// # Signatures
//
// Webhook-Id, Webhook-Timestamp and the body are signed. The headers of a CloudEvent in binary mode are not. The id of
// the event must be that of Webhook-Id, so nobody can send a captured request as another event. But whoever can change
// a request on its way can change its other attributes, such as the topic or the tenant: use HTTPS, or let the sender
// use structured mode, in which everything is in the body, and set Config.Structured.
//
// # Answers
//
// What each answer means to the publisher is in brackets: P makes a dead letter at the sender, U charges nothing and
// lets the endpoint rest, A is a failed attempt.
//
//	204             applied, or a duplicate, or stale and skipped or quarantined
//	400 415 422 (P) not a valid event, another content type; unknown topic or version, invalid payload, consume.Permanent
//	413         (P) the body is larger than Config.MaxBody
//	401         (A) no valid signature, or a time outside Config.Tolerance
//	403         (A) not in structured mode, with Config.Structured
//	405         (A) not POST
//	429         (U) all of Config.Concurrency are busy; with Retry-After
//	503         (U) the database does not answer, or the consumer said outbox.Unavailable; with Retry-After
//	501         (A) consume.ErrUnimplemented
//	500         (A) any other error or panic of the consumer, or Config.Timeout; with Retry-After after outbox.RetryAfter
//	408         (A) the body did not arrive in time
//
// The body of an answer is one short line of text that says why. It has the text of a permanent error, and of no other
// error, because errors of a database or of the consumer may tell more than a sender should know.
package webhook

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/broker/webhookkey"
	"github.com/outboxgen/outboxgen/internal/call/isnil"
)

// Config says which events a Handler takes and how. DB, Consumer and Secrets are required.
type Config struct {
	// DB begins the transactions of the effects: a *pgxpool.Pool. The caller closes it after the server has shut down.
	DB consume.DB
	// Consumer applies the events: what a generated constructor such as NewUserConsumer returns.
	Consumer *consume.Consumer
	// Secrets verify the signature of each request. One of them must match, so that during a rotation the sender may use
	// the old or the new one. A secret has 24 to 64 bytes, in base64, with or without the prefix whsec_, such as what
	// `openssl rand -base64 32` prints.
	Secrets []string
	// Unsigned takes events from anybody who reaches the handler. It is for senders that something else authenticates,
	// such as a proxy. Secrets must be empty then.
	Unsigned bool
	// Structured takes only CloudEvents in structured mode, whose attributes are part of the signed body.
	Structured bool
	// Tolerance is how far Webhook-Timestamp may be from this machine's clock, in either direction. An older request is
	// refused as a replay. 0 means 5 min.
	Tolerance time.Duration
	// MaxBody is how many bytes the body of a request may have. 0 means 4 MiB, which is enough for every event of a
	// producer.
	MaxBody int64
	// Timeout is how long a request may wait and run before its transaction is rolled back. 0 means 10 s, which is less
	// than what the publisher waits for an answer.
	Timeout time.Duration
	// Concurrency is how many events may be applied concurrently. Further requests wait for up to half of the Timeout and
	// are then answered with 429. 0 means 16. The pool should have as many connections.
	Concurrency int
	// RetryAfter is how long senders are asked to wait after 429 and 503. It is rounded up to seconds. 0 means 2 s.
	RetryAfter time.Duration
	// Observer gets a call per request.
	Observer Observer
	// Logger gets changes of state: when the database, a topic or a sender starts and stops to fail. nil means
	// slog.Default(). It never gets a payload, a secret or a signature.
	Logger *slog.Logger
}

// Observer has functions that tell what a Handler does. Those that are nil cost nothing. They run in the goroutine of
// the request, so they must return soon. A panic in one of them is ignored.
type Observer struct {
	// Answered is called for each request, after its effect and before its answer is sent.
	Answered func(ctx context.Context, a Answered)
}

// Answered is a request and its answer.
type Answered struct {
	// Event is the event, or the zero Event if the request was refused before it was read.
	Event consume.Event
	// Status is that of the answer.
	Status int
	// Outcome is what the inbox did. It is empty if the status is not 204.
	Outcome inbox.Outcome
	// Err is why the status is not 204. It may have more than the answer says.
	Err error
	// Took is how long the request took, including the time in which it waited for others.
	Took time.Duration
}

// Defaults of Config.
const (
	defaultTolerance   = 5 * time.Minute
	defaultMaxBody     = 4 << 20
	defaultTimeout     = 10 * time.Second
	defaultConcurrency = 16
	defaultRetryAfter  = 2 * time.Second
)

func (c Config) withDefaults() Config {
	c.Tolerance = cmp.Or(c.Tolerance, defaultTolerance)
	c.MaxBody = cmp.Or(c.MaxBody, defaultMaxBody)
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	c.Concurrency = cmp.Or(c.Concurrency, defaultConcurrency)
	c.RetryAfter = cmp.Or(c.RetryAfter, defaultRetryAfter)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c
}

func (c Config) validate() error {
	switch {
	case isnil.Is(c.DB):
		return errors.New("field DB is nil")
	case c.Consumer == nil:
		return errors.New("field Consumer is nil")
	case len(c.Secrets) == 0 && !c.Unsigned:
		return errors.New("field Secrets is empty: add a secret, or set Unsigned to take events from anybody")
	case len(c.Secrets) > 0 && c.Unsigned:
		return errors.New("field Secrets is not empty, but Unsigned is set: use one of them")
	case c.MaxBody < 0:
		return fmt.Errorf("field MaxBody: %d is negative", c.MaxBody)
	case c.Concurrency < 0:
		return fmt.Errorf("field Concurrency: %d is negative", c.Concurrency)
	}
	for _, d := range [...]struct {
		name  string
		value time.Duration
	}{{"Tolerance", c.Tolerance}, {"Timeout", c.Timeout}, {"RetryAfter", c.RetryAfter}} {
		if d.value < 0 {
			return fmt.Errorf("field %s: %s is negative", d.name, d.value)
		}
	}
	return nil
}

// shown is the part of a Config that may be printed.
type shown struct {
	Secrets                        int
	Unsigned, Structured           bool
	Tolerance, Timeout, RetryAfter time.Duration
	MaxBody                        int64
	Concurrency                    int
}

func (c Config) shown() shown {
	return shown{
		Secrets: len(c.Secrets), Unsigned: c.Unsigned, Structured: c.Structured, Tolerance: c.Tolerance, Timeout: c.Timeout,
		RetryAfter: c.RetryAfter, MaxBody: c.MaxBody, Concurrency: c.Concurrency,
	}
}

// Format writes the configuration without secrets, for any verb.
func (c Config) Format(w fmt.State, _ rune) { _, _ = fmt.Fprintf(w, "%+v", c.shown()) }

// LogValue logs the configuration without secrets.
func (c Config) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(c)) }

// MarshalJSON writes the configuration without secrets; it cannot be read back.
func (c Config) MarshalJSON() ([]byte, error) { return json.Marshal(c.shown()) }

// Handler checks cfg and returns a handler that applies the event of each request. It does not use the database. An
// error names the field, without secrets. The handler is safe for concurrent use, ignores the path of a request, and
// needs no Close: http.Server.Shutdown waits for running requests.
func Handler(cfg Config) (http.Handler, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("create webhook handler: %w", err)
	}
	v := verifier{tolerance: cfg.Tolerance, unsigned: cfg.Unsigned}
	for i, secret := range cfg.Secrets {
		key, err := webhookkey.Decode(secret)
		if err != nil {
			return nil, fmt.Errorf("create webhook handler: field Secrets: number %d %w", i+1, err)
		}
		v.keys = append(v.keys, key)
	}
	cfg.Secrets = nil // so that no later mistake can print them
	return &handler{cfg: cfg, verifier: v, slots: make(chan struct{}, cfg.Concurrency), log: newLog(cfg.Logger)}, nil
}

type handler struct {
	cfg      Config
	verifier verifier
	slots    chan struct{} // has one element per event that is being applied
	log      *stateLog
}

// Format writes the configuration of the handler without secrets, for any verb.
func (h *handler) Format(w fmt.State, _ rune) {
	_, _ = fmt.Fprintf(w, "webhook.Handler(%d secrets)", len(h.verifier.keys))
}
