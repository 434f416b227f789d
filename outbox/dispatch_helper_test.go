package outbox_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
)

// patience is how long a test waits for what must happen, however busy the machine is; it only passes when something is
// broken.
const patience = 2 * time.Minute

// job is the payload of the dispatcher's tests.
type job struct {
	TenantID uuid.UUID `json:"tenant_id"`
	N        int64     `json:"n"`
	Secret   string    `json:"secret,omitempty"`
}

type jobHandlers interface {
	HandleJob(context.Context, outbox.Delivery[job]) error
}

type jobFunc func(context.Context, outbox.Delivery[job]) error

func (f jobFunc) HandleJob(ctx context.Context, d outbox.Delivery[job]) error { return f(ctx, d) }

// jobTopic returns a topic of the namespace jobs that retries soon.
func jobTopic(name string) outbox.Topic[job] {
	return outbox.NewTopic[job](outbox.TopicSpec{
		Namespace: "jobs", Name: name, Version: 1,
		Retry: outbox.Retry{MaxAttempts: 5, BaseDelay: time.Millisecond, MaxDelay: 20 * time.Millisecond},
		Keys:  func(v any) outbox.Keys { return outbox.Keys{TenantID: outbox.Tenant(v.(*job).TenantID)} },
	})
}

// altered returns topic with what change does to its spec.
func altered[P any](topic outbox.Topic[P], change func(*outbox.TopicSpec)) outbox.Topic[P] {
	spec := topic.Untyped().Spec()
	change(&spec)
	return outbox.NewTopic[P](spec)
}

func onJob(topic outbox.Topic[job], fn jobFunc) outbox.TopicHandler {
	return outbox.Handle(topic, jobHandlers(fn), jobHandlers(fn).HandleJob)
}

// quick is a configuration with a short poll and a lease that a busy machine can keep.
func quick() outbox.DispatcherConfig {
	return outbox.DispatcherConfig{PollInterval: 50 * time.Millisecond, Logger: quiet()}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func dispatcher(t testing.TB, pool *pgxpool.Pool, cfg outbox.DispatcherConfig, handlers ...outbox.TopicHandler) *outbox.Dispatcher {
	t.Helper()
	d, err := outbox.NewDispatcher(pool, cfg, handlers...)
	require.NoError(t, err)
	return d
}

// start runs d until stop, which returns what Run did; the test's end stops it too.
func start(t testing.TB, d *outbox.Dispatcher) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

// numbered returns n jobs, numbered from 0.
func numbered(n int) []job {
	tenant := uuid.New()
	jobs := make([]job, n)
	for i := range jobs {
		jobs[i] = job{TenantID: tenant, N: int64(i)}
	}
	return jobs
}

func enqueueJobs(t testing.TB, pool *pgxpool.Pool, topic outbox.Topic[job], jobs ...job) []uuid.UUID {
	t.Helper()
	ids := make([]uuid.UUID, 0, len(jobs))
	require.NoError(t, pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
		receipts, err := topic.Untyped().EnqueueMany(context.Background(), tx, jobs)
		for _, r := range receipts {
			ids = append(ids, r.ID)
		}
		return err
	}))
	return ids
}

// eventState is the state of an event.
type eventState struct {
	Status      string
	Attempts    int
	MaxAttempts int
	ClaimNo     int64
	LastError   string
	Leased      bool // locked_until is set
	DueIn       time.Duration
}

func stateOf(t testing.TB, pool *pgxpool.Pool, id uuid.UUID) eventState {
	t.Helper()
	var r eventState
	require.NoError(t, pool.QueryRow(context.Background(), `
		SELECT status, attempts, max_attempts, claim_no, coalesce(last_error, ''), locked_until IS NOT NULL,
			next_attempt_at - updated_at
		FROM outbox.events WHERE id = $1`, id).
		Scan(&r.Status, &r.Attempts, &r.MaxAttempts, &r.ClaimNo, &r.LastError, &r.Leased, &r.DueIn))
	return r
}

// count runs a query that returns one number.
func count(t testing.TB, pool *pgxpool.Pool, query string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, pool.QueryRow(context.Background(), query, args...).Scan(&n))
	return n
}

// receive waits for ch.
func receive[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case v := <-ch:
		return v
	case <-timeout.C:
		require.FailNow(t, "timeout", "waited %s for %s", patience, what)
		panic("unreachable")
	}
}

// settles waits until a query that returns one number returns want.
func settles(t testing.TB, pool *pgxpool.Pool, want int, query string, args ...any) {
	t.Helper()
	got := -1
	eventually(t, func() bool {
		return pool.QueryRow(context.Background(), query, args...).Scan(&got) == nil && got == want
	}, func() string { return fmt.Sprintf("%s: want %d, not %d", query, want, got) })
}

// eventually looks until look returns true. Unlike require.Eventually it does so in the goroutine of the test, so that
// look may fail the test. What explains a look that never does.
func eventually(t testing.TB, look func() bool, what ...func() string) {
	t.Helper()
	for deadline := time.Now().Add(patience); !look(); {
		if time.Now().After(deadline) {
			var texts []string
			for _, text := range what {
				texts = append(texts, text())
			}
			require.FailNow(t, "timeout", "waited %s: %s", patience, strings.Join(texts, ", "))
		}
		<-time.After(interval)
	}
}

const delivered = "SELECT count(*) FROM outbox.events WHERE status = 'delivered'"

// spy is a log that tests read and wait for.
type spy struct {
	mu    sync.Mutex
	text  strings.Builder
	lines chan string
}

func newSpy() *spy { return &spy{lines: make(chan string, 10_000)} }

func (s *spy) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(s, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (s *spy) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(line)
	select {
	case s.lines <- string(line):
	default:
	}
	return len(line), nil
}

func (s *spy) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// await returns the next line that holds part.
func (s *spy) await(t testing.TB, part string) string {
	t.Helper()
	for {
		if line := receive(t, s.lines, fmt.Sprintf("the log line %q", part)); strings.Contains(line, part) {
			return line
		}
	}
}

var _ io.Writer = (*spy)(nil)

// gauge counts what runs at once.
type gauge struct{ now, most atomic.Int64 }

func (g *gauge) enter() int64 {
	n := g.now.Add(1)
	for {
		most := g.most.Load()
		if n <= most || g.most.CompareAndSwap(most, n) {
			return n
		}
	}
}

func (g *gauge) leave() { g.now.Add(-1) }
