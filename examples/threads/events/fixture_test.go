package events_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/threads/database"
	"github.com/outboxgen/outboxgen/examples/threads/events"
	"github.com/outboxgen/outboxgen/examples/threads/thread"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
)

// patience is how long a test waits for something that must happen.
const patience = 2 * time.Minute

// fixture is a database with the threads of one tenant.
type fixture struct {
	t      *testing.T
	pool   *pgxpool.Pool
	tenant uuid.UUID
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, pool: outboxtest.Postgres(t), tenant: uuid.New()}
	require.NoError(t, database.Migrate(t.Context(), f.pool))
	return f
}

func (f *fixture) thread() uuid.UUID {
	f.t.Helper()
	id := uuid.New()
	require.NoError(f.t, pgx.BeginFunc(f.t.Context(), f.pool, func(tx pgx.Tx) error {
		_, err := thread.Create(f.t.Context(), tx, f.tenant, id)
		return err
	}))
	return id
}

func (f *fixture) draft(id uuid.UUID, text string) thread.Draft {
	return thread.Draft{TenantID: f.tenant, ThreadID: id, ID: uuid.New(), Role: events.RoleUser, Author: "ada", Text: text}
}

// post posts messages of a user, each in its own transaction.
func (f *fixture) post(id uuid.UUID, texts ...string) {
	f.t.Helper()
	for _, text := range texts {
		require.NoError(f.t, f.postDraft(f.draft(id, text)))
	}
}

func (f *fixture) postDraft(d thread.Draft) error {
	return pgx.BeginFunc(f.t.Context(), f.pool, func(tx pgx.Tx) error {
		_, _, err := thread.Post(f.t.Context(), tx, d)
		return err
	})
}

// count returns the number that query finds.
func (f *fixture) count(query string, args ...any) (n int) {
	f.t.Helper()
	require.NoError(f.t, f.pool.QueryRow(f.t.Context(), query, args...).Scan(&n))
	return n
}

// jobs returns how many replies were requested.
func (f *fixture) jobs() int {
	f.t.Helper()
	return f.count("SELECT count(*) FROM outbox.events WHERE namespace = 'replies' AND topic = 'reply_requested'")
}

// broadcast returns the listener with handler h.
func (f *fixture) broadcast(h events.BroadcastHandlers, cfg listener.Config) *listener.Listener {
	f.t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	l, err := events.NewBroadcastListener(f.pool, h, cfg)
	require.NoError(f.t, err)
	return l
}

// companion returns the listener with handler h.
func (f *fixture) companion(h events.CompanionHandlers, cfg listener.Config) *listener.Listener {
	f.t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	l, err := events.NewCompanionListener(f.pool, h, cfg)
	require.NoError(f.t, err)
	return l
}

// attached returns broadcast with handler h, already attached, because a listener that starts at the latest event misses
// everything from before its first run.
func (f *fixture) attached(h events.BroadcastHandlers, cfg listener.Config) *listener.Listener {
	f.t.Helper()
	l := f.broadcast(h, cfg)
	require.Zero(f.t, outboxtest.Drain(f.t, l))
	return l
}

// start runs l until the test ends, or stop is called.
func (f *fixture) start(l *listener.Listener) (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	over := make(chan error, 1)
	go func() { over <- l.Run(ctx) }()
	// A function that sync.OnceFunc calls must not fail the test: FailNow would end the goroutine in it, and that panics.
	end := sync.OnceValue(func() error {
		cancel()
		return <-over
	})
	f.t.Cleanup(func() { assert.NoError(f.t, end()) })
	return func() { require.NoError(f.t, end()) }
}

// record has the deliveries to a listener, including failures.
type record struct {
	mu   sync.Mutex
	got  []delivery
	more chan struct{} // closed and replaced with each delivery
}

type delivery struct {
	outbox.Delivery[events.MessageCreated]
	at  time.Time // when the handler was called
	err error     // what it returned
}

func newRecord() *record { return &record{more: make(chan struct{})} }

func (r *record) add(d delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, d)
	close(r.more)
	r.more = make(chan struct{})
}

// all returns the deliveries so far, and a channel that is closed at the next one.
func (r *record) all() ([]delivery, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got[:len(r.got):len(r.got)], r.more
}

// await waits until enough is true for the deliveries, and returns them.
func (r *record) await(t *testing.T, enough func([]delivery) bool) []delivery {
	t.Helper()
	timeout := time.After(patience)
	for {
		got, more := r.all()
		if enough(got) {
			return got
		}
		select {
		case <-more:
		case <-timeout:
			require.FailNow(t, "deliveries did not come", "there are %d", len(got))
		}
	}
}

// handled returns the texts of the handled messages of a thread, in the order of handling.
func handled(got []delivery, id uuid.UUID) []string {
	var texts []string
	for _, d := range got {
		if d.err == nil && d.Payload.ThreadID == id {
			texts = append(texts, d.Payload.Text)
		}
	}
	return texts
}

func (r *record) handled(id uuid.UUID) []string {
	got, _ := r.all()
	return handled(got, id)
}

// broadcaster is a handler of broadcast that keeps a record and returns the error of fail.
type broadcaster struct {
	*record
	fail func(outbox.Delivery[events.MessageCreated]) error // may be nil
}

func newBroadcaster(fail func(outbox.Delivery[events.MessageCreated]) error) *broadcaster {
	return &broadcaster{record: newRecord(), fail: fail}
}

func (b *broadcaster) HandleMessageCreated(_ context.Context, d outbox.Delivery[events.MessageCreated]) (err error) {
	at := time.Now()
	if b.fail != nil {
		err = b.fail(d)
	}
	b.add(delivery{d, at, err})
	return err
}

// asker is the handler of companion with a record. It calls after once a reply is requested.
type asker struct {
	events.CompanionHandler
	*record
	after func(context.Context, pgx.Tx, outbox.Delivery[events.MessageCreated]) error // may be nil
}

func newAsker(after func(context.Context, pgx.Tx, outbox.Delivery[events.MessageCreated]) error) *asker {
	return &asker{record: newRecord(), after: after}
}

func (a *asker) HandleMessageCreated(ctx context.Context, tx pgx.Tx, d outbox.Delivery[events.MessageCreated]) error {
	at := time.Now()
	err := a.CompanionHandler.HandleMessageCreated(ctx, tx, d)
	if err == nil && a.after != nil {
		err = a.after(ctx, tx, d)
	}
	a.add(delivery{d, at, err})
	return err
}
