package admin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
)

// tool runs a program that comes with the server and returns what it writes. The binaries that tools/postgres.sh fetches are
// the server alone: there the test is skipped.
func tool(t testing.TB, in []byte, name string, args ...string) []byte {
	t.Helper()
	bin, err := pgserver.Find()
	require.NoError(t, err)
	if _, err := os.Stat(filepath.Join(bin, name)); errors.Is(err, fs.ErrNotExist) {
		t.Skipf("%s does not come with this server: %s", name, bin)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, name), args...)
	var out, complaints bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &complaints
	require.NoError(t, cmd.Run(), "%s: %s", name, &complaints)
	return out.Bytes()
}

func dump(t testing.TB, pool *pgxpool.Pool) []byte {
	t.Helper()
	return tool(t, nil, "pg_dump", "--format=custom", pgtest.URL(t, pool))
}

// restore returns a new database of server that holds a dump.
func restore(t testing.TB, server *pgserver.Server, name string, dumped []byte) *pgxpool.Pool {
	t.Helper()
	pool := newDatabase(t, server, name)
	tool(t, dumped, "pg_restore", "--exit-on-error", "--dbname", pgtest.URL(t, pool))
	return pool
}

func newDatabase(t testing.TB, server *pgserver.Server, name string) *pgxpool.Pool {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.URL())
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "CREATE DATABASE "+name)
	require.NoError(t, errors.Join(err, conn.Close(t.Context())))
	return pgtest.Pool(t, server.URLOf(name))
}

// audience has listeners of every kind on one log, and what each has handled.
type audience struct {
	t       *testing.T
	pool    *pgxpool.Pool
	failing bool // some events fail, at random
	heard   map[string]map[uuid.UUID]int
	random  *rand.Rand
}

var audienceSpecs = []listener.Spec{
	{Name: "concurrent", Concurrency: 3, Shards: 3},
	{Name: "parking", ParkKeys: true},
	{Name: "plain"},
	{Name: "resharding"},
	{Name: "transactional"},
}

func newAudience(t *testing.T, pool *pgxpool.Pool) *audience {
	a := &audience{t: t, pool: pool, heard: make(map[string]map[uuid.UUID]int), random: rand.New(rand.NewPCG(rand.Uint64(), 0))}
	for _, spec := range audienceSpecs {
		a.heard[spec.Name] = make(map[uuid.UUID]int)
	}
	return a
}

// listener returns one of the audience, as a separate process.
func (a *audience) listener(spec listener.Spec) (*listener.Listener, *runtimetest.Notes) {
	h := runtimetest.NewNotes()
	h.Fail = func(outbox.Delivery[runtimetest.Said]) error {
		// The head of a listener that is to get other shards always fails, so that it waits for them.
		if a.failing && (spec.Shards == 3 && spec.Name == "resharding" || rand.IntN(6) == 0) {
			return runtimetest.ErrHandler
		}
		return nil
	}
	spec.Retry = outbox.Retry{MaxAttempts: 1000, BaseDelay: time.Hour, MaxDelay: time.Hour}
	cfg := listener.Config{BatchSize: 1 + a.random.IntN(7)}
	if spec.Name == "transactional" {
		return runtimetest.ListenTx(a.t, a.pool, spec, cfg, h), h
	}
	return runtimetest.ListenTo(a.t, a.pool, spec, cfg, h), h
}

// listen makes one of the audience handle what is due.
func (a *audience) listen(spec listener.Spec) {
	a.t.Helper()
	l, h := a.listener(spec)
	runtimetest.DrainAll(a.t, l)
	for _, d := range h.Got {
		a.heard[spec.Name][d.ID]++
	}
}

// put enqueues a few events with tx.
func (a *audience) put(tx pgx.Tx, n int) {
	a.t.Helper()
	for range n {
		p := runtimetest.Said{Key: string(rune('a' + a.random.IntN(5))), N: a.random.IntN(1000)}
		topic := runtimetest.SaidTopic
		if a.random.IntN(4) == 0 {
			topic = runtimetest.LooseTopic
		}
		_, err := topic.Enqueue(a.t.Context(), tx, p)
		require.NoError(a.t, err)
	}
}

// enqueue lets transactions begin, write, commit and roll back in any order, while the audience listens. It returns the
// transactions that are still open.
func (a *audience) enqueue(steps int) (open []pgx.Tx) {
	a.t.Helper()
	for range steps {
		switch k := a.random.IntN(6); {
		case k < 2 && len(open) < 8:
			open = append(open, pgtest.Begin(a.t, a.pool, pgx.TxOptions{}))
			a.put(open[len(open)-1], 1+a.random.IntN(3))
		case k < 4 && len(open) > 0:
			i := a.random.IntN(len(open))
			if a.random.IntN(4) == 0 {
				require.NoError(a.t, open[i].Rollback(a.t.Context()))
			} else {
				require.NoError(a.t, open[i].Commit(a.t.Context()))
			}
			open = slices.Delete(open, i, i+1)
		case k == 4:
			a.listen(audienceSpecs[a.random.IntN(len(audienceSpecs))])
		default:
			runtimetest.RetryNow(a.t, a.pool)
		}
	}
	return open
}

// require checks that every listener has handled each event of the log once, before the copy or after it. The
// transactional listener reads only one of the topics.
func (a *audience) require() {
	a.t.Helper()
	rows, err := a.pool.Query(a.t.Context(), "SELECT id, topic FROM outbox.log")
	require.NoError(a.t, err)
	var id uuid.UUID
	var topic string
	events := 0
	_, err = pgx.ForEachRow(rows, []any{&id, &topic}, func() error {
		for name, heard := range a.heard {
			want := 1
			if name == "transactional" && topic == runtimetest.LooseTopic.Untyped().Spec().Name {
				want = 0
			}
			require.Equal(a.t, want, heard[id], "listener %s, event %d, topic %s", name, events, topic)
		}
		events++
		return nil
	})
	require.NoError(a.t, err)
	require.Positive(a.t, events)
}

// at returns the audience of a copy of the database, with what was handled so far.
func (a *audience) at(t *testing.T, pool *pgxpool.Pool) *audience {
	b := newAudience(t, pool)
	for name, heard := range a.heard {
		for id, n := range heard {
			b.heard[name][id] = n
		}
	}
	return b
}

// finish makes all listeners handle the log to its end.
func (a *audience) finish() {
	a.t.Helper()
	a.failing = false
	runtimetest.RetryNow(a.t, a.pool)
	for _, spec := range audienceSpecs {
		if spec.Name == "resharding" {
			spec.Shards = 3
		}
		a.listen(spec)
	}
	a.require()
}

const wholeState = `SELECT md5(string_agg(line, E'\n' ORDER BY line)) FROM (
	SELECT l::text AS line FROM outbox.listeners AS l UNION ALL SELECT g::text FROM outbox.log AS g
	UNION ALL SELECT p::text FROM outbox.parked AS p UNION ALL SELECT d::text FROM outbox.dead_letters AS d
	UNION ALL SELECT s.last_value::text FROM outbox.log_seq AS s) AS o`

// TestRebaseAfterDumpAndRestore takes listeners in many states through pg_dump and pg_restore: into a cluster whose
// xids are behind, into one whose xids are ahead, and into the original one.
func TestRebaseAfterDumpAndRestore(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	source, target := pgtest.Server(t, pgserver.Options{}), pgtest.Server(t, pgserver.Options{})
	pool := newDatabase(t, source, "original")
	_, err := migrate.Up(t.Context(), pool, pgtest.Schema)
	require.NoError(t, err)
	runtimetest.MakeEffects(t, pool)
	pgtest.Execute(t, pool, "DO $$ BEGIN FOR n IN 1..3000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")

	before := newAudience(t, pool)
	for _, spec := range audienceSpecs {
		before.listen(spec) // attaches it
	}
	before.failing = true
	late := pgtest.Begin(t, pool, pgx.TxOptions{})
	before.put(late, 3)
	open := before.enqueue(300)
	before.failing = false
	pgtest.InTx(t, pool, func(tx pgx.Tx) { before.put(tx, 5) })
	for _, spec := range audienceSpecs[:4] {
		before.listen(spec)
	}
	before.failing = true
	pgtest.InTx(t, pool, func(tx pgx.Tx) { before.put(tx, 20) })
	before.listen(audienceSpecs[2])
	require.NoError(t, late.Commit(t.Context())) // behind the cursors
	resharding := audienceSpecs[3]
	resharding.Shards = 3
	before.listen(resharding)
	dumped := dump(t, pool)
	for _, tx := range open {
		require.NoError(t, tx.Rollback(t.Context()))
	}

	t.Run("same cluster", func(t *testing.T) {
		after := before.at(t, restore(t, source, "copy", dumped))
		r, err := runtimetest.AdminOf(t, after.pool).Rebase(t.Context())
		require.NoError(t, err)
		require.Equal(t, admin.RebaseReport{}, r)
		after.finish()
	})

	after := before.at(t, restore(t, target, "moved", dumped))
	operator := runtimetest.AdminOf(t, after.pool)
	t.Run("is detected", func(t *testing.T) {
		for _, spec := range append([]listener.Spec{{Name: "newcomer"}, {Name: "newcomer", Latest: true}}, audienceSpecs...) {
			l, _ := after.listener(spec)
			err := l.Run(t.Context())
			require.ErrorIs(t, err, outbox.ErrRestored)
			require.EqualError(t, err, "run listener "+spec.Name+": database was restored: run `outboxgen listener rebase`")
			_, err = l.Drain(t.Context())
			require.ErrorIs(t, err, outbox.ErrRestored)
		}
		list, err := operator.Listeners(t.Context())
		require.NoError(t, err)
		require.Len(t, list, 7)
		for _, s := range list {
			require.Equal(t, admin.ListenerRestored, s.State)
		}
		state := pgtest.Value[string](t, after.pool, wholeState)
		_, err = operator.Rewind(t.Context(), "plain", time.Time{})
		require.ErrorIs(t, err, outbox.ErrRestored)
		_, err = operator.Skip(t.Context(), "plain", uuid.Nil)
		require.ErrorIs(t, err, outbox.ErrRestored)
		require.Equal(t, state, pgtest.Value[string](t, after.pool, wholeState))
	})

	pgtest.InTx(t, after.pool, func(tx pgx.Tx) { after.put(tx, 5) }) // producers need not wait for the rebase
	events := pgtest.Value[int64](t, after.pool, "SELECT count(*) FROM outbox.log")
	state := pgtest.Value[string](t, after.pool, wholeState)
	planned, err := operator.Preview().Rebase(t.Context())
	require.NoError(t, err)
	require.Equal(t, state, pgtest.Value[string](t, after.pool, wholeState))
	var done, total int64
	r, err := operator.WithProgress(func(n, of int64) { done, total = n, of }).Rebase(t.Context())
	require.NoError(t, err)
	require.Equal(t, planned, r)
	require.True(t, r.Needed)
	require.Equal(t, []string{"concurrent", "parking", "plain", "resharding", "transactional"}, r.Listeners)
	require.GreaterOrEqual(t, r.Behind, int64(3))
	require.Equal(t, []int64{events, events, events}, []int64{r.Events, done, total})
	again, err := operator.Rebase(t.Context())
	require.NoError(t, err)
	require.Equal(t, admin.RebaseReport{}, again)

	// Events behind only some cursors are marked now, and keep their marks in another dump.
	marked := dump(t, after.pool)
	pgtest.InTx(t, after.pool, func(tx pgx.Tx) { after.put(tx, 5) })
	after.finish()

	t.Run("a cluster that is ahead", func(t *testing.T) {
		back := before.at(t, restore(t, source, "back", marked))
		l, _ := back.listener(audienceSpecs[2])
		require.ErrorIs(t, l.Run(t.Context()), outbox.ErrRestored)
		r, err := runtimetest.AdminOf(t, back.pool).Rebase(t.Context())
		require.NoError(t, err)
		require.True(t, r.Needed)
		require.Equal(t, events, r.Events)
		open := back.enqueue(50)
		for _, tx := range open {
			require.NoError(t, tx.Commit(t.Context()))
		}
		back.finish()
	})
}

// Without listeners, only the first new listener would be affected: its windows would contain no restored event.
func TestRebaseOfALogWithoutListeners(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	runtimetest.PutAll(t, pool, "a1", "a2")
	pgtest.Execute(t, pool, "UPDATE outbox.log SET xid = (9000000000 + seq)::text::xid8")
	h := runtimetest.NewNotes()
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, h)
	require.ErrorIs(t, l.Run(t.Context()), outbox.ErrRestored)
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.listeners"), "it is not attached")
	r, err := runtimetest.AdminOf(t, pool).Rebase(t.Context())
	require.NoError(t, err)
	require.Equal(t, admin.RebaseReport{Needed: true, Events: 2}, r)
	runtimetest.PutAll(t, pool, "a3")
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"a1", "a2", "a3"}, h.Names())
}

func TestRebaseRefusesARunningListener(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	h.Hold = make(chan struct{})
	worker := uuid.New()
	stop := runtimetest.StartListener(t, runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{WorkerID: worker}, h))
	runtimetest.Put(t, pool, "a", 1)
	pgtest.Receive(t, h.Started, "the handler")
	pgtest.Execute(t, pool, "UPDATE outbox.listeners SET system_id = 1")
	state := pgtest.Value[string](t, pool, wholeState)
	_, err := a.Rebase(t.Context())
	var held *admin.LeaseHeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, "ears", held.Listener)
	require.Equal(t, worker, held.Worker)
	require.True(t, held.Until.After(time.Now()))
	require.Equal(t, state, pgtest.Value[string](t, pool, wholeState))
	close(h.Hold)
	h.Await(t, 1)
	stop()
	r, err := a.Rebase(t.Context())
	require.NoError(t, err)
	require.Equal(t, admin.RebaseReport{Needed: true, Listeners: []string{"ears"}, Events: 1}, r)
}

// The marks of one rebase have no meaning in the next: a marked event that was delivered meanwhile is not delivered
// again.
func TestRebaseTwice(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, h)
	runtimetest.DrainAll(t, l)
	for n := range 3 {
		open := pgtest.Begin(t, pool, pgx.TxOptions{})
		_, err := runtimetest.SaidTopic.Enqueue(t.Context(), open, runtimetest.Said{Key: "late", N: n})
		require.NoError(t, err)
		runtimetest.Put(t, pool, "a", n)
		runtimetest.DrainAll(t, l)
		require.NoError(t, open.Commit(t.Context()))
		pgtest.Execute(t, pool, "UPDATE outbox.listeners SET system_id = 1")
		r, err := runtimetest.AdminOf(t, pool).Rebase(t.Context())
		require.NoError(t, err)
		require.Equal(t, admin.RebaseReport{Needed: true, Listeners: []string{"ears"}, Events: int64(2*n + 2), Behind: 1}, r)
		runtimetest.DrainAll(t, l)
	}
	require.Equal(t, []string{"a0", "late0", "a1", "late1", "a2", "late2"}, h.Names())
}

// A copy by logical replication leaves the sequence behind. After a rebase, positions continue above those of the log
// and of the cursors.
func TestRebaseMovesTheSequence(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, h)
	runtimetest.PutAll(t, pool, "a1", "a2", "a3")
	runtimetest.DrainAll(t, l)
	again := func(names ...string) {
		pgtest.Execute(t, pool, "SELECT setval('outbox.log_seq', 1, false)")
		pgtest.Execute(t, pool, "UPDATE outbox.listeners SET system_id = 1")
		_, err := runtimetest.AdminOf(t, pool).Rebase(t.Context())
		require.NoError(t, err)
		runtimetest.PutAll(t, pool, names...)
	}
	again("b1")
	again("b2") // the log ends above the cursor
	runtimetest.DrainAll(t, l)
	pgtest.Execute(t, pool, "DELETE FROM outbox.log")
	again("c1") // and below
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"a1", "a2", "a3", "b1", "b2", "c1"}, h.Names())
}

// A rebase that is cut off in its last step has changed nothing.
func TestRebaseIsAllOrNothing(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, h))
	pgtest.Execute(t, pool, `INSERT INTO outbox.log (xid, namespace, topic, payload)
		SELECT (9000000000 + n)::text::xid8, 'test', 'said', '{}' FROM generate_series(1, 25000) AS n`)
	pgtest.Execute(t, pool, "UPDATE outbox.listeners SET system_id = 1")
	state := pgtest.Value[string](t, pool, wholeState)
	ctx, cancel := context.WithCancel(t.Context())
	var steps []string
	a := runtimetest.AdminOf(t, pool).WithProgress(func(done, total int64) {
		steps = append(steps, fmt.Sprint(done, "/", total))
		if done == total {
			cancel()
		}
	})
	_, err := a.Rebase(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []string{"10000/25000", "20000/25000", "25000/25000"}, steps)
	require.Equal(t, state, pgtest.Value[string](t, pool, wholeState))
	pgtest.Eventually(t, func() bool { // the session ends by itself
		r, err := a.Rebase(t.Context())
		return err == nil && r.Needed
	})
	require.Equal(t, 25_000, runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{BatchSize: 1000}, h)).Delivered)
}
