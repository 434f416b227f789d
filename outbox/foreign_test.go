package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// rude is a payload whose codec does what is registered for its case, when N is 0.
type rude struct {
	Case string `json:"case"`
	N    int    `json:"n"`
}

var rudeCodecs sync.Map // by case, func()

func (r *rude) UnmarshalJSON(text []byte) error {
	type plain rude
	if err := json.Unmarshal(text, (*plain)(r)); err != nil {
		return err
	}
	if do, there := rudeCodecs.Load(r.Case); there && r.N == 0 {
		do.(func())()
	}
	return nil
}

func rudeTopic(log bool) outbox.Topic[rude] {
	return outbox.Topic[rude]{
		Namespace: "test", Name: "rude", Version: 1, Log: log, Retry: outbox.Retry{MaxAttempts: 1},
		Keys: func(r rude) outbox.Keys {
			return outbox.Keys{Partition: outbox.NewKey(outbox.StringPart("key", fmt.Sprint("k", r.N)))}
		},
	}
}

// rudeError is an error whose methods misbehave.
type rudeError struct{ error, unwrap, is, as func() }

func (e *rudeError) call(do func()) {
	if do != nil {
		do()
	}
}

func (e *rudeError) Error() string {
	e.call(e.error)
	return "it failed"
}

func (e *rudeError) Unwrap() error {
	e.call(e.unwrap)
	return nil
}

func (e *rudeError) Is(error) bool {
	e.call(e.is)
	return false
}

func (e *rudeError) As(any) bool {
	e.call(e.as)
	return false
}

// rudeLogger is a handler of lines that misbehaves at the first one.
type rudeLogger struct {
	once *sync.Once
	do   func()
}

func (r rudeLogger) Enabled(context.Context, slog.Level) bool { return true }

func (r rudeLogger) Handle(context.Context, slog.Record) error {
	r.once.Do(r.do)
	return errors.New("no space left")
}
func (r rudeLogger) WithAttrs([]slog.Attr) slog.Handler { return r }
func (r rudeLogger) WithGroup(string) slog.Handler      { return r }

// foreign is code of a user in which something may go wrong when it meets the event with N = 0.
type foreign struct {
	handle  func() error // called by the handler or the publisher
	codec   func()
	key     func()
	headers func()
	log     func()
}

// got is what was delivered in a case, and by whom.
type got struct {
	mu   sync.Mutex
	seen map[int]bool
	told chan struct{}
}

func (g *got) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen[n] = true
	if len(g.seen) == rudeEvents-1 {
		close(g.told)
	}
}

const rudeEvents = 10

// runner is a dispatcher or listener.
type runner interface {
	Run(context.Context) error
	Drain(context.Context) (outbox.DrainReport, error)
}

// runners make a runner of foreign code.
var runners = map[string]func(t *testing.T, pool *pgxpool.Pool, f foreign, g *got) runner{
	"dispatcher": func(t *testing.T, pool *pgxpool.Pool, f foreign, g *got) runner {
		cfg := quick()
		cfg.Logger, cfg.ShutdownTimeout = f.logger(), time.Millisecond
		return dispatcher(t, pool, cfg, outbox.Handle(rudeTopic(false), f, func(f foreign, _ context.Context, d outbox.Delivery[rude]) error {
			return f.run(d.Payload.N, g)
		}))
	},
	"publishing dispatcher": func(t *testing.T, pool *pgxpool.Pool, f foreign, g *got) runner {
		cfg := quick()
		cfg.Logger, cfg.Publishers, cfg.ShutdownTimeout = f.logger(), map[string]outbox.Publisher{"kafka": f.publisher(g)}, time.Millisecond
		return dispatcher(t, pool, cfg, outbox.Publish(rudeTopic(false), f.publication()))
	},
	"leased listener": func(t *testing.T, pool *pgxpool.Pool, f foreign, g *got) runner {
		l, err := outbox.NewListener(pool, outbox.ListenerSpec{Name: "rude", Concurrency: 3, Retry: outbox.Retry{MaxAttempts: 1}},
			outbox.ListenerConfig{Logger: f.logger(), ShutdownTimeout: time.Millisecond},
			outbox.Listen(rudeTopic(true), f, func(f foreign, _ context.Context, d outbox.Delivery[rude]) error { return f.run(d.Payload.N, g) }))
		require.NoError(t, err)
		return l
	},
	"transactional listener": func(t *testing.T, pool *pgxpool.Pool, f foreign, g *got) runner {
		l, err := outbox.NewListener(pool, outbox.ListenerSpec{Name: "rude", Retry: outbox.Retry{MaxAttempts: 1}},
			outbox.ListenerConfig{Logger: f.logger(), ShutdownTimeout: time.Millisecond},
			outbox.ListenTx(rudeTopic(true), f, func(f foreign, _ context.Context, _ pgx.Tx, d outbox.Delivery[rude]) error {
				return f.run(d.Payload.N, g)
			}))
		require.NoError(t, err)
		return l
	},
	"publishing listener": func(t *testing.T, pool *pgxpool.Pool, f foreign, g *got) runner {
		l, err := outbox.NewListener(pool, outbox.ListenerSpec{Name: "rude", Retry: outbox.Retry{MaxAttempts: 1}},
			outbox.ListenerConfig{Logger: f.logger(), Publishers: map[string]outbox.Publisher{"kafka": f.publisher(g)}, ShutdownTimeout: time.Millisecond},
			outbox.ListenPublish(rudeTopic(true), f.publication()))
		require.NoError(t, err)
		return l
	},
}

func (f foreign) logger() *slog.Logger {
	if f.log == nil {
		return quiet()
	}
	return slog.New(rudeLogger{once: new(sync.Once), do: f.log})
}

func (f foreign) run(n int, g *got) error {
	if n == 0 {
		if f.handle == nil {
			return errors.New("it failed")
		}
		return f.handle()
	}
	g.add(n)
	return nil
}

func (f foreign) publication() outbox.Publication[rude] {
	misbehave := func(do func(), n int) {
		if do != nil && n == 0 {
			do()
		}
	}
	return outbox.Publication[rude]{
		Broker: "kafka", Destination: "sc.rude",
		Key: func(r rude) outbox.Key {
			misbehave(f.key, r.N)
			return outbox.NewKey(outbox.StringPart("key", fmt.Sprint("k", r.N)))
		},
		Headers: func(r rude) map[string]string {
			misbehave(f.headers, r.N)
			return nil
		},
	}
}

type rudePublisher struct {
	f foreign
	g *got
}

func (f foreign) publisher(g *got) outbox.Publisher { return rudePublisher{f, g} }

func (p rudePublisher) Publish(_ context.Context, events []outbox.Outgoing) []error {
	errs := make([]error, len(events))
	for i, e := range events {
		var r struct{ N int }
		if err := json.Unmarshal(e.Payload, &r); err != nil {
			panic(err)
		}
		errs[i] = p.f.run(r.N, p.g)
	}
	return errs
}

// TestForeignCodeCannotHurt: whatever a handler, a publisher, a codec, a key, headers, the methods of a returned error or
// a logger do to one event, the process lives, the other events are delivered, and that one has its reason.
func TestForeignCodeCannotHurt(t *testing.T) {
	t.Parallel()
	var typedNil *rudeError
	misdeeds := map[string]struct {
		do     func(release <-chan struct{})
		reason string
	}{
		"panic":  {func(<-chan struct{}) { panic(errors.New("boom")) }, "panicked: boom"},
		"nil":    {func(<-chan struct{}) { _ = typedNil.error }, "nil pointer dereference"},
		"goexit": {func(<-chan struct{}) { runtime.Goexit() }, "called runtime.Goexit"},
		"hang":   {func(release <-chan struct{}) { <-release }, "did not return within"},
	}
	places := map[string]func(do func()) foreign{
		"handler": func(do func()) foreign {
			return foreign{handle: func() error {
				do()
				return nil
			}}
		},
		"Error":   func(do func()) foreign { return foreign{handle: func() error { return &rudeError{error: do} }} },
		"Unwrap":  func(do func()) foreign { return foreign{handle: func() error { return &rudeError{unwrap: do} }} },
		"Is":      func(do func()) foreign { return foreign{handle: func() error { return &rudeError{is: do} }} },
		"As":      func(do func()) foreign { return foreign{handle: func() error { return &rudeError{as: do} }} },
		"payload": func(do func()) foreign { return foreign{codec: do} },
		"key":     func(do func()) foreign { return foreign{key: do} },
		"headers": func(do func()) foreign { return foreign{headers: do} },
		"logger":  func(do func()) foreign { return foreign{log: do} },
	}
	for runs, newRunner := range runners {
		for place, at := range places {
			publishes := strings.HasPrefix(runs, "publishing")
			if slices.Contains([]string{"key", "headers"}, place) && !publishes {
				continue
			}
			for what, misdeed := range misdeeds {
				for _, how := range []string{"Run", "Drain"} {
					// What may take as long as it likes is not timed: it is left behind when the runner stops.
					hangs := what == "hang" && (place == "handler" || place == "payload" && !publishes)
					reason := misdeed.reason
					if place == "logger" {
						reason = "it failed"
					}
					t.Run(strings.Join([]string{runs, place, what, how}, "/"), func(t *testing.T) {
						t.Parallel()
						release := make(chan struct{})
						t.Cleanup(sync.OnceFunc(func() { close(release) }))
						f := at(func() { misdeed.do(release) })
						id := uuid.NewString()
						if f.codec != nil {
							rudeCodecs.Store(id, f.codec)
						}
						foreignCase{hangs: hangs, reason: reason, drain: how == "Drain"}.check(t, id, f, newRunner, !strings.HasSuffix(runs, "dispatcher"),
							runs == "transactional listener" || publishes)
					})
				}
			}
		}
	}
}

type foreignCase struct {
	hangs  bool // for as long as the test lasts
	drain  bool
	reason string
}

// check runs a runner over events of which one misbehaves. alone says that others wait while it hangs, because they are
// handled in one transaction or sent in one call.
func (c foreignCase) check(t *testing.T, id string, f foreign, newRunner func(*testing.T, *pgxpool.Pool, foreign, *got) runner, log, alone bool) {
	pool := pgtest.Database(t)
	g := &got{seen: make(map[int]bool), told: make(chan struct{})}
	r := newRunner(t, pool, f, g)
	inTx(t, pool, func(tx pgx.Tx) {
		for n := range rudeEvents {
			_, err := rudeTopic(log).Enqueue(t.Context(), tx, rude{Case: id, N: n})
			require.NoError(t, err)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() {
		if c.drain {
			report, err := r.Drain(ctx)
			over <- errors.Join(err, checkReport(c, report))
			return
		}
		over <- r.Run(ctx)
	}()
	if !c.hangs || !alone {
		receive(t, g.told, "the other events")
	}
	if c.hangs {
		cancel()
		err := receive(t, over, "the end")
		require.ErrorContains(t, err, "still running")
		return
	}
	if !c.drain {
		letters := "SELECT count(*) FROM outbox.dead_letters"
		if !log {
			letters = "SELECT count(*) FROM outbox.events WHERE status = 'dead'"
		}
		settles(t, pool, 1, letters)
		cancel()
	}
	require.NoError(t, receive(t, over, "the end"))
	cancel()
	reason := "SELECT error FROM outbox.dead_letters"
	if !log {
		reason = "SELECT last_error FROM outbox.events WHERE status = 'dead'"
	}
	require.Contains(t, value[string](t, pool, reason), c.reason)
}

func checkReport(c foreignCase, r outbox.DrainReport) error {
	if !c.hangs && (r.Delivered != rudeEvents-1 || r.Dead != 1) {
		return fmt.Errorf("the drain reports %+v", r)
	}
	return nil
}
