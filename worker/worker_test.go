package worker_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/worker"
)

// fake is a runner that does what its functions do.
type fake struct {
	run   func(ctx context.Context) error
	drain func(ctx context.Context, limit outbox.DrainLimit) (outbox.DrainReport, error)
}

func (f fake) Run(ctx context.Context) error { return f.run(ctx) }

func (f fake) DrainUpTo(ctx context.Context, limit outbox.DrainLimit) (outbox.DrainReport, error) {
	return f.drain(ctx, limit)
}

// part returns a part that drains with a function.
func part(name string, drain func(ctx context.Context, limit outbox.DrainLimit) (outbox.DrainReport, error)) worker.Part {
	return worker.Part{Name: name, Runner: fake{drain: drain}}
}

// reports returns a part whose drains have this result.
func reports(name string, r outbox.DrainReport, err error) worker.Part {
	return part(name, func(context.Context, outbox.DrainLimit) (outbox.DrainReport, error) { return r, err })
}

func newWorker(t testing.TB, parts ...worker.Part) *worker.Worker {
	t.Helper()
	w, err := worker.New(parts...)
	require.NoError(t, err)
	return w
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for want, parts := range map[string][]worker.Part{
		"new worker: no parts":                            {},
		"new worker: part 2 has no name":                  {{Name: "a", Runner: fake{}}, {Runner: fake{}}},
		`new worker: two parts have the name "a"`:         {{Name: "a", Runner: fake{}}, {Name: "a", Runner: fake{}}},
		`new worker: part "a" has no runner (nil)`:        {{Name: "a"}},
		`new worker: part "queue" has no runner (nil)`:    {{Name: "queue", Runner: (*queue.Dispatcher)(nil)}},
		`new worker: part "listener" has no runner (nil)`: {{Name: "listener", Runner: (*listener.Listener)(nil)}},
	} {
		_, err := worker.New(parts...)
		require.EqualError(t, err, want)
	}
}

// untilStopped is a part that runs until its context ends.
func untilStopped(name string, started, stopped chan<- string) worker.Part {
	return worker.Part{Name: name, Runner: fake{run: func(ctx context.Context) error {
		started <- name
		<-ctx.Done()
		stopped <- name
		return nil
	}}}
}

// TestRunStopsTogether: the end of the context stops all parts, and so does the end of one of them, which the error names.
func TestRunStopsTogether(t *testing.T) {
	t.Parallel()
	started, stopped := make(chan string, 5), make(chan string, 5)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := newWorker(t, untilStopped("a", started, stopped), untilStopped("b", started, stopped))
	over := make(chan error, 1)
	go func() { over <- w.Run(ctx) }()
	pgtest.Receive(t, started, "the first part")
	pgtest.Receive(t, started, "the second part")
	require.EqualError(t, w.Run(ctx), "run worker: the worker is running already")
	_, err := w.DrainUpTo(t.Context(), outbox.DrainLimit{})
	require.EqualError(t, err, "drain worker: the worker is running already")
	require.ErrorIs(t, err, outbox.ErrBusy)
	cancel()
	require.NoError(t, pgtest.Receive(t, over, "the end of Run"))
	require.Len(t, stopped, 2)
	require.NoError(t, w.Run(ctx), "it is free again")
	require.Len(t, stopped, 4)

	fails := worker.Part{Name: "c", Runner: fake{run: func(context.Context) error { return errors.New("not migrated") }}}
	require.EqualError(t, newWorker(t, untilStopped("a", started, stopped), fails).Run(t.Context()), "c: not migrated")
	require.Len(t, stopped, 5)
}

// TestDrainReport: the report has the sum and the parts, also when one part fails or panics.
func TestDrainReport(t *testing.T) {
	t.Parallel()
	limit := outbox.DrainLimit{Events: 7, Time: time.Minute}
	first := part("mini_chat", func(_ context.Context, got outbox.DrainLimit) (outbox.DrainReport, error) {
		require.Equal(t, limit, got)
		return outbox.DrainReport{Delivered: 4, Retried: 1, Dead: 2, Ended: outbox.EndEvents}, nil
	})
	second := reports("companion", outbox.DrainReport{Delivered: 3, Lost: 1, HandedBack: 5, Resting: []string{"kafka:users"}}, nil)
	r, err := newWorker(t, first, second).DrainUpTo(t.Context(), limit)
	require.NoError(t, err)
	require.True(t, r.More())
	require.Positive(t, r.Took)
	r.Took = 1234567 * time.Microsecond
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.JSONEq(t, `{
		"delivered": 7, "retried": 1, "dead": 2, "lost": 1, "handed_back": 5, "resting": ["kafka:users"], "ended": "events", "more": true, "took": "1.235s",
		"parts": [
			{"name": "mini_chat", "delivered": 4, "retried": 1, "dead": 2, "lost": 0, "handed_back": 0, "ended": "events"},
			{"name": "companion", "delivered": 3, "retried": 0, "dead": 0, "lost": 1, "handed_back": 5, "resting": ["kafka:users"], "ended": "drained"}
		]}`, string(text))

	failing := reports("failing", outbox.DrainReport{Delivered: 1, Ended: outbox.EndStopped}, errors.New("no database"))
	panicking := part("panicking", func(context.Context, outbox.DrainLimit) (outbox.DrainReport, error) { panic("oh") })
	r, err = newWorker(t, failing, second, panicking).DrainUpTo(t.Context(), limit)
	require.ErrorContains(t, err, "failing: no database; panicking: drain panicked: oh\n")
	require.Equal(t, 4, r.Delivered)
	require.Equal(t, outbox.EndStopped, r.Ended)
	require.Equal(t, outbox.EndStopped, r.Parts[2].Ended)

	r, err = newWorker(t, second).DrainUpTo(t.Context(), limit)
	require.NoError(t, err)
	require.False(t, r.More())
}

// These run in a worker too. The receivers of consume/kafka, consume/nats and consume/redis say so in their modules.
var (
	_ worker.Drainer = (*queue.Dispatcher)(nil)
	_ worker.Drainer = (*listener.Listener)(nil)
	_ worker.Runner  = (*receive.Receiver)(nil)
)

// runOnly is a runner that cannot be drained.
type runOnly func(ctx context.Context) error

func (f runOnly) Run(ctx context.Context) error { return f(ctx) }

// TestReceiversOnlyRun: a part that is not a Drainer runs and stops with the others. A drain of its worker is refused before
// another part is drained, because the part would be missing silently.
func TestReceiversOnlyRun(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	started, stopped := make(chan string, 2), make(chan string, 2)
	receiver := worker.Part{Name: "cards", Runner: runOnly(func(ctx context.Context) error {
		started <- "cards"
		<-ctx.Done()
		stopped <- "cards"
		return nil
	})}
	w := newWorker(t, untilStopped("relay", started, stopped), receiver)
	over := make(chan error, 1)
	go func() { over <- w.Run(ctx) }()
	pgtest.Receive(t, started, "the first part")
	pgtest.Receive(t, started, "the second part")
	cancel()
	require.NoError(t, pgtest.Receive(t, over, "the end of Run"))
	require.Len(t, stopped, 2)

	other := part("mini_chat", func(context.Context, outbox.DrainLimit) (outbox.DrainReport, error) {
		t.Error("drained")
		return outbox.DrainReport{}, nil
	})
	const want = `part "cards" can run, but it cannot be drained: drain a worker without it`
	w = newWorker(t, other, receiver)
	r, err := w.DrainUpTo(t.Context(), outbox.DrainLimit{})
	require.EqualError(t, err, "drain worker: "+want)
	require.Equal(t, outbox.EndStopped, r.Ended)
	_, err = w.DrainHandler(worker.HandlerConfig{Key: "0123456789abcdef"})
	require.EqualError(t, err, "new drain handler: "+want)
}

// childVariable holds the URL of the database of a child process.
const childVariable = "OUTBOXGEN_TEST_WORKER"

// recorder is a handler that records what it handles.
type recorder struct{ pool *pgxpool.Pool }

func (r *recorder) handle(ctx context.Context, d outbox.Delivery[runtimetest.Said]) error {
	_, err := r.pool.Exec(ctx, "INSERT INTO handled (id, pid) VALUES ($1, $2)", d.ID, os.Getpid())
	return err
}

// heard is the queue topic of these tests; said is the log topic.
var heard = runtimetest.Altered(runtimetest.SaidTopic, func(s *outbox.TopicSpec) { s.Log, s.Name = false, "heard" })

// realWorker returns a worker with a dispatcher and a listener in two shards.
func realWorker(t testing.TB, pool *pgxpool.Pool) *worker.Worker {
	t.Helper()
	r := &recorder{pool: pool}
	d := runtimetest.Dispatcher(t, pool, queue.Config{BatchSize: 10, Logger: runtimetest.DiscardLogger()}, queue.Handle(heard, r, r.handle))
	l, err := listener.New(pool, listener.Spec{Name: "ears", Shards: 2}, listener.Config{BatchSize: 10, Logger: runtimetest.DiscardLogger()},
		listener.Handle(runtimetest.SaidTopic, r, r.handle))
	require.NoError(t, err)
	return newWorker(t, worker.Part{Name: "test", Runner: d}, worker.Part{Name: "ears", Runner: l})
}

// prepare makes the table of the recorder, attaches the listener, and enqueues n events of each topic.
func prepare(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	pgtest.Execute(t, pool, "CREATE TABLE handled (id uuid PRIMARY KEY, pid int NOT NULL)") // none twice
	_, err := realWorker(t, pool).DrainUpTo(t.Context(), outbox.DrainLimit{})
	require.NoError(t, err)
	var all []runtimetest.Said
	for i := range n {
		all = append(all, runtimetest.Said{Key: string(rune('a' + i%26)), N: i})
	}
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		for _, topic := range []outbox.Topic[runtimetest.Said]{heard, runtimetest.SaidTopic} {
			_, err := topic.EnqueueMany(t.Context(), tx, all)
			require.NoError(t, err)
		}
	})
}

// TestChild is not a test but the main function of the child processes. A child drains piece by piece, as a cron job
// does that is called again and again.
func TestChild(t *testing.T) {
	text := os.Getenv(childVariable)
	if text == "" {
		return
	}
	var url string
	require.NoError(t, json.Unmarshal([]byte(text), &url))
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	defer pool.Close()
	w := realWorker(t, pool)
	fmt.Println("ready")
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	require.NoError(t, err)
	for {
		r, err := w.DrainUpTo(t.Context(), outbox.DrainLimit{Events: 17})
		require.NoError(t, err)
		require.LessOrEqual(t, r.Delivered, 2*17)
		require.Zero(t, r.Retried+r.Dead+r.Lost)
		if !r.More() {
			return
		}
	}
}

// TestProcessesDrainTogether: processes that drain one backlog concurrently handle each event once, and lose none.
func TestProcessesDrainTogether(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	const n = 600
	prepare(t, pool, n)
	var children []*runtimetest.Child
	for range 3 {
		children = append(children, runtimetest.Spawn(t, "TestChild", childVariable, runtimetest.ChildURL(t, pool)))
	}
	for _, c := range children {
		require.Equal(t, "ready", pgtest.Receive(t, c.Lines, "a child"))
	}
	for _, c := range children {
		_, err := io.WriteString(c.Input, "go\n")
		require.NoError(t, err)
	}
	for _, c := range children {
		require.NoError(t, c.Wait())
	}
	r, err := realWorker(t, pool).DrainUpTo(t.Context(), outbox.DrainLimit{}) // shards that each child left to the others
	require.NoError(t, err)
	require.False(t, r.More())
	require.Equal(t, 2*n, pgtest.Count(t, pool, "SELECT count(*) FROM handled"))
	require.Greater(t, pgtest.Count(t, pool, "SELECT count(DISTINCT pid) FROM handled WHERE pid <> $1", os.Getpid()), 1)
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue"))
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
}
