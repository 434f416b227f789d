package listener

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/retention"
	"github.com/outboxgen/outboxgen/internal/machine/shutdown"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/listener/internal/core"
	"github.com/outboxgen/outboxgen/outbox"
)

const (
	// logBacklogVariable says how many events the log has, for a large one.
	logBacklogVariable = "OUTBOXGEN_PLAN_BACKLOG"
	logBacklog         = 100_000
	logBurst           = 50_000 // stragglers of one transaction
	logBatch           = 1000
	logParkedKeys      = 500
	logParkedQueue     = 20_000 // events parked behind one head
)

// logPlans is a log with listeners, on tables without autovacuum.
type logPlans struct {
	t       *testing.T
	pool    *pgxpool.Pool
	backlog int
	facts   string // statistics
}

type ignoring struct{}

func (ignoring) handle(context.Context, outbox.Delivery[struct{}]) error { return nil }

// listener returns an attached listener of topic.
func (p *logPlans) listener(spec Spec, topic string) *Listener {
	p.t.Helper()
	l, err := New(p.pool, spec, Config{BatchSize: logBatch, LeaseDuration: time.Hour},
		Handle(outbox.NewTopic[struct{}](outbox.TopicSpec{Namespace: "test", Name: topic, Version: 1, Log: true}), ignoring{}, ignoring{}.handle))
	require.NoError(p.t, err)
	_, err = l.attach(p.t.Context())
	require.NoError(p.t, err)
	return l
}

// shell returns the shell of the shard of l.
func (p *logPlans) shell(l *Listener) *shard {
	return (&listenerRun{l: l, Stages: shutdown.New(p.t.Context()), drained: &Report{}}).shard(0, 1, 0)
}

// taken makes l take a lease, and leaves it open. Its No is 0 if there is nothing to take.
func (p *logPlans) taken(l *Listener) *core.Lease {
	p.t.Helper()
	answer, err := p.shell(l).sendRoundTrip(core.RoundTrip{Take: &core.Take{
		ID: uuid.New(), AfterNo: p.latest(l), BatchSize: logBatch, ScanSize: logBatch, Read: true,
	}})
	require.NoError(p.t, err)
	cfg := l.coreConfig()
	answer.Lease.Prepare(&cfg, time.Now(), nil)
	return answer.Lease
}

// take makes l take a lease, and leaves it open.
func (p *logPlans) take(l *Listener) *core.Lease {
	p.t.Helper()
	lease := p.taken(l)
	require.NotZero(p.t, lease.No)
	return lease
}

// end is the end of a lease of l.
func (p *logPlans) end(l *Listener, lease *core.Lease, release bool) *core.End {
	cfg := l.coreConfig()
	return cfg.End(lease, time.Now(), release)
}

func (p *logPlans) exec(sql string, args ...any) {
	p.t.Helper()
	_, err := p.pool.Exec(p.t.Context(), sql, args...)
	require.NoError(p.t, err)
}

// logRows inserts $1 events, of which one in 1000 is of the topic rare.
const logRows = `
	INSERT INTO outbox.log (namespace, topic, partition_key, bucket, payload)
	SELECT 'test', CASE WHEN n % 1000 = 0 THEN 'rare' ELSE 'said' END, 'k' || n % 1000, n % 32768,
		'{"text": "some hundred bytes of payload, as events have, and a little more to fill a row"}'
	FROM generate_series(1, $1::int) AS n`

// fill commits n events in transactions of 1000.
func (p *logPlans) fill(n int) {
	p.t.Helper()
	for range n / 1000 {
		p.exec(logRows, 1000)
	}
}

// explain requires that e stays within its bounds, with every kind of plan.
func (p *logPlans) explain(db *schemadb.Schema, e pgtest.Explained) pgtest.PlanNode {
	p.t.Helper()
	if e.Tables == nil {
		e.Tables = []string{"log", "parked", "dead_letters"}
	}
	var root pgtest.PlanNode
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		var ms float64
		root, ms = e.Run(p.t, db, p.pool, mode)
		p.t.Logf("%-28s %-5s %-18s %7.2f ms, %5.0f pages, %s", e.Name, p.facts, mode, ms, root.Hit+root.Read, strings.Join(pgtest.IndexesOf(&root), " "))
	}
	return root
}

// latest is the number of the latest lease of l.
func (p *logPlans) latest(l *Listener) (no int64) {
	p.t.Helper()
	require.NoError(p.t, p.pool.QueryRow(p.t.Context(), "SELECT lease_no FROM outbox.listeners WHERE listener = $1 AND shard = 0", l.spec.Name).Scan(&no))
	return no
}

// lease explains how l takes a lease: what it reads does not depend on the size of the tables.
func (p *logPlans) lease(l *Listener, name string) {
	p.t.Helper()
	p.explain(l.db, pgtest.Explained{Name: name + ": lease", Reads: 10, Sorts: 10, Buffers: 100, Call: func(q *queries.Queries) {
		_, _ = q.ListenerTakeLease(p.t.Context(), queries.ListenerTakeLeaseParams{
			WorkerID: pgvalue.UUID(l.cfg.WorkerID), Lease: pgvalue.Interval(time.Hour), LeaseID: pgvalue.UUID(uuid.New()), PreviousID: pgvalue.UUID(uuid.Nil),
			OneByOneSize: logBatch, Listener: l.spec.Name, Shard: 0, ParkedLimit: core.MaxParkedKeys, AfterNo: p.latest(l),
		})
	}})
}

// read explains how l reads a batch of size in its lease, and requires that it gets want events.
func (p *logPlans) read(l *Listener, name string, size, want int) {
	p.t.Helper()
	n := float64(size)
	root := p.explain(l.db, pgtest.Explained{Name: name + ": read " + strconv.Itoa(size), Reads: 3 * n, Sorts: 3*n + 50, Buffers: 3*n + 100, Call: func(q *queries.Queries) {
		_, _ = q.LogRead(p.t.Context(), queries.LogReadParams{
			Listener: l.spec.Name, Shard: 0, WorkerID: pgvalue.UUID(l.cfg.WorkerID), ScanSize: int32(size), Topics: l.topics, KeyPrefixes: l.keyPrefixes, BatchSize: int32(size),
		})
	}})
	require.EqualValues(p.t, want, root.Rows, name)
}

// readNext explains how l reads ahead in its lease, from after on, and requires that it gets want positions.
func (p *logPlans) readNext(l *Listener, lease *core.Lease, name string, after, want int) {
	p.t.Helper()
	root := p.explain(l.db, pgtest.Explained{Name: name + ": read on", Reads: logBatch, Sorts: 0, Buffers: 4*logBatch + 100, Call: func(q *queries.Queries) {
		_, _ = q.LogReadNext(p.t.Context(), queries.LogReadNextParams{
			Topics: l.topics, KeyPrefixes: l.keyPrefixes, AfterSeq: int64(after), ScanSize: logBatch, Listener: l.spec.Name, Shard: 0, WorkerID: pgvalue.UUID(l.cfg.WorkerID), LeaseNo: lease.No,
		})
	}})
	require.EqualValues(p.t, want, root.Rows, name)
}

// advance explains the end of t, with which a tenth of its events die and another is parked.
func (p *logPlans) advance(l *Listener, lease *core.Lease, name string) {
	p.t.Helper()
	for i, e := range lease.Events {
		e.Status = core.Done
		switch e.Result = errclass.Of(os.ErrDeadlineExceeded); i % 10 {
		case 3:
			e.Status = core.Dead
		case 6:
			e.Status = core.Parked
		}
	}
	a := p.end(l, lease, false)
	require.Len(p.t, a.Dead.Seqs, (len(lease.Events)+6)/10)
	n := float64(len(lease.Events))
	p.explain(l.db, pgtest.Explained{Name: name + ": advance", Reads: n, Sorts: n, Buffers: 20 * n, Call: func(q *queries.Queries) { _, _ = q.ListenerAdvance(p.t.Context(), p.shell(l).advanceParams(a, "")) }})
}

// once explains the small statements that l runs between two batches.
func (p *logPlans) once(l *Listener) {
	p.t.Helper()
	ctx := p.t.Context()
	worker := pgvalue.UUID(l.cfg.WorkerID)
	for name, call := range map[string]func(q *queries.Queries){
		"wait": func(q *queries.Queries) {
			_, _ = q.ListenerWait(ctx, queries.ListenerWaitParams{WorkerID: worker, Listener: l.spec.Name})
		},
		"wait of another": func(q *queries.Queries) {
			_, _ = q.ListenerWait(ctx, queries.ListenerWaitParams{WorkerID: pgvalue.UUID(uuid.New()), Listener: l.spec.Name})
		},
		"renew": func(q *queries.Queries) {
			_, _ = q.ListenerRenew(ctx, queries.ListenerRenewParams{Lease: pgvalue.Interval(time.Hour), Listener: l.spec.Name, WorkerID: worker, LeaseNo: 1})
		},
		"want": func(q *queries.Queries) {
			_, _ = q.ListenerWant(ctx, queries.ListenerWantParams{WorkerID: worker, Listener: l.spec.Name})
		},
		"past shards": func(q *queries.Queries) {
			_, _ = q.ListenerPastShards(ctx, queries.ListenerPastShardsParams{Listener: l.spec.Name, Shards: 1})
		},
		"state": func(q *queries.Queries) {
			_, _ = q.ListenerLeaseState(ctx, queries.ListenerLeaseStateParams{Listener: l.spec.Name})
		},
	} {
		p.explain(l.db, pgtest.Explained{Name: l.spec.Name + ": " + name, Reads: 10, Sorts: 100, Buffers: 100, Callers: true, Call: call})
	}
	// These run at the start, and with each pruning.
	p.explain(l.db, pgtest.Explained{Name: "registration", Reads: 10, Sorts: 10, Buffers: 100, Callers: true, Call: func(q *queries.Queries) {
		_, _ = q.ListenerRegistration(ctx, l.spec.Name)
	}})
	p.exec("UPDATE outbox.listeners SET max_lag = interval '1 us'")
	p.explain(l.db, pgtest.Explained{Name: "lags", Tables: []string{"log"}, Reads: 20, Sorts: 100, Callers: true, Call: func(q *queries.Queries) { _, _ = q.ListenerLags(ctx) }})
}

// prune explains a step of pruning.
func (p *logPlans) prune(db *schemadb.Schema, name string, afterSeq int64, keep time.Duration) {
	p.t.Helper()
	p.explain(db, pgtest.Explained{Name: "prune: " + name, Reads: retention.PruneScan, Sorts: retention.PruneScan, Buffers: 30 * retention.PruneScan, Call: func(q *queries.Queries) {
		_, _ = q.LogPrune(p.t.Context(), queries.LogPruneParams{
			Topics: []string{"test/said", "test/rare"}, RetentionsUs: slices.Repeat([]int64{keep.Microseconds()}, 2), AfterSeq: afterSeq, ScanSize: retention.PruneScan,
		})
	}})
}

// parked explains the statements for parked events: of many keys, and of one key with a long queue.
func (p *logPlans) parked(l *Listener) {
	p.t.Helper()
	const set = `
		INSERT INTO outbox.parked (listener, key, seq, id, namespace, topic, version, payload, bucket, created_at, retry_after)
		SELECT $1, $2 || n % $3, $4 + n, gen_random_uuid(), 'test', 'said', 1, '{}', n % 32768, statement_timestamp(),
			CASE WHEN n <= $3 THEN statement_timestamp() - interval '1 s' END
		FROM generate_series(1, $5::int) AS n`
	p.exec(set, l.spec.Name, "many", logParkedKeys, -10_000_000, 4*logParkedKeys)
	p.exec(set, l.spec.Name, "one", 1, -5_000_000, logParkedQueue)
	p.exec(set, "another", "many", logParkedKeys, -10_000_000, 4*logParkedKeys)
	if p.facts == "fresh" {
		p.exec("ANALYZE outbox.parked")
	}
	p.once(l)
	name := l.spec.Name
	p.explain(l.db, pgtest.Explained{Name: name + ": lease", Reads: logParkedKeys + 1, Sorts: 10, Buffers: 3*logParkedKeys + 100, Call: func(q *queries.Queries) {
		_, _ = q.ListenerTakeLease(p.t.Context(), queries.ListenerTakeLeaseParams{
			WorkerID: pgvalue.UUID(l.cfg.WorkerID), Lease: pgvalue.Interval(time.Hour), LeaseID: pgvalue.UUID(uuid.New()), PreviousID: pgvalue.UUID(uuid.Nil),
			OneByOneSize: logBatch, Listener: name, ParkedLimit: core.MaxParkedKeys, AfterNo: p.latest(l),
		})
	}})
	lease := p.take(l)
	require.True(p.t, lease.ParkedDue)
	const most = config.ParkedKeyBatch * core.ParkedBatch
	for _, oneByOne := range []bool{false, true} {
		p.explain(l.db, pgtest.Explained{Name: name + ": take", Reads: most, Sorts: most, Buffers: 400, Callers: true, Call: func(q *queries.Queries) {
			_, _ = q.ParkedTake(p.t.Context(), queries.ParkedTakeParams{
				Listener: name, EventLimit: core.ParkedBatch, Shards: 1, WorkerID: pgvalue.UUID(l.cfg.WorkerID), LeaseNo: lease.No, KeyLimit: config.ParkedKeyBatch, OneByOne: oneByOne,
			})
		}})
	}
	p.read(l, name, logBatch, logBatch-1)
	p.readNext(l, lease, name, logBatch, logBatch)
	taken := p.shell(l).takeParked(core.TakeParked{Lease: lease, Keys: config.ParkedKeyBatch, Events: core.ParkedBatch})
	require.IsType(p.t, core.ParkedTaken{}, taken)
	cfg := l.coreConfig()
	lease.AddParked(&cfg, time.Now(), taken.(core.ParkedTaken).Events)
	require.GreaterOrEqual(p.t, len(lease.Parked), config.ParkedKeyBatch)
	for i, e := range lease.Parked {
		e.Status, e.Result = [...]core.Status{core.Done, core.Retried, core.Dead}[i%3], errclass.Of(os.ErrDeadlineExceeded)
	}
	a := p.end(l, lease, false)
	n := float64(len(lease.Parked))
	p.explain(l.db, pgtest.Explained{Name: name + ": settle", Reads: n, Sorts: n, Buffers: 30 * n, Call: func(q *queries.Queries) { _ = q.ParkedSettle(p.t.Context(), p.shell(l).settleParams(a, "")) }})
	p.explain(l.db, pgtest.Explained{Name: name + ": promote", Reads: n, Sorts: n, Buffers: 30 * n, Call: func(q *queries.Queries) {
		_ = q.ParkedPromote(p.t.Context(), queries.ParkedPromoteParams{Keys: a.Promote, Listener: name})
	}})
}

// Every statement that a listener runs for a batch reads about a batch, whatever the log holds and whatever statistics
// the planner has.
func TestListenerPlansHoldWithAnyStatistics(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, facts := range []string{"empty", "fresh"} {
		t.Run(facts, func(t *testing.T) {
			t.Parallel()
			p := &logPlans{t: t, pool: pgtest.Database(t), backlog: logBacklog, facts: facts}
			if text := os.Getenv(logBacklogVariable); text != "" {
				var err error
				p.backlog, err = strconv.Atoi(text)
				require.NoError(t, err, logBacklogVariable)
			}
			p.all()
		})
	}
}

func (p *logPlans) all() {
	t := p.t
	for _, table := range []string{"log", "listeners", "parked", "dead_letters"} {
		p.exec("ALTER TABLE outbox." + table + " SET (autovacuum_enabled = off)")
		p.exec("ANALYZE outbox." + table) // statistics of the empty table
	}
	burst, err := p.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = burst.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = burst.Exec(t.Context(), logRows, logBurst)
	require.NoError(t, err)
	p.fill(1000)
	window := p.listener(Spec{Name: "window", Latest: true}, "said")
	p.fill(1000)
	opened := p.take(window)
	p.fill(p.backlog)
	late := p.listener(Spec{Name: "late", Latest: true}, "said")
	straddling, err := p.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = straddling.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = straddling.Exec(t.Context(), logRows, 20)
	require.NoError(t, err)
	p.fill(1000)
	between := p.listener(Spec{Name: "between", Latest: true}, "said")
	_, err = straddling.Exec(t.Context(), logRows, logBurst)
	require.NoError(t, err)
	require.NoError(t, straddling.Commit(t.Context()))
	require.NoError(t, burst.Commit(t.Context()))
	if p.facts == "fresh" {
		p.exec("ANALYZE outbox.log")
	}

	// This window was opened before the backlog was written, and ends there.
	p.read(window, "window", logBatch, 999)
	p.exec("UPDATE outbox.listeners SET last_seq = hi_seq WHERE listener = 'window'")
	p.read(window, "end of window", logBatch, 1)
	p.advance(window, opened, "window")

	p.lease(late, "stragglers")
	taken := p.take(late)
	for _, size := range []int{10, 100, logBatch} {
		p.read(late, "stragglers", size, size-size/1000)
	}
	p.exec("UPDATE outbox.listeners SET last_seq = $1 WHERE listener = 'late'", logBurst/2)
	p.read(late, "half the stragglers", logBatch, logBatch-1)
	p.exec("UPDATE outbox.listeners SET last_seq = $1 WHERE listener = 'late'", logBurst)
	p.read(late, "behind the stragglers", logBatch, logBatch)
	p.readNext(late, taken, "among the stragglers", logBurst, 0)
	p.advance(late, taken, "stragglers")

	// This transaction has a few stragglers, and many other events.
	p.lease(between, "some of a transaction")
	p.take(between)
	p.read(between, "some of a transaction", 10, 10)
	p.exec("UPDATE outbox.listeners SET last_seq = high_seq WHERE listener = 'between'")
	p.read(between, "rest of a transaction", 10, 10)

	end := p.listener(Spec{Name: "tip", Latest: true}, "said")
	p.lease(end, "nothing new")
	p.prune(end.db, "all", logBurst, 0)
	p.prune(end.db, "nothing", logBurst, time.Hour)
	p.fill(1000)
	p.lease(end, "end of the log")
	taken = p.take(end)
	p.read(end, "end of the log", logBatch, 999)
	p.advance(end, taken, "end of the log")

	start := p.listener(Spec{Name: "start"}, "said")
	p.lease(start, "start of the log")
	taken = p.take(start)
	for _, size := range []int{10, 100, logBatch} {
		p.read(start, "start of the log", size, size-size/1000)
	}
	p.readNext(start, taken, "start of the log", logBatch, logBatch)
	p.readNext(start, taken, "middle of the log", logBurst+p.backlog/2, logBatch)
	p.readNext(start, taken, "end of the window", 10*(logBurst+p.backlog), 0)
	p.advance(start, taken, "start of the log")
	p.exec("UPDATE outbox.listeners SET last_seq = $1 WHERE listener = 'start'", logBurst+p.backlog/2)
	p.read(start, "middle of the log", logBatch, logBatch-1)
	p.prune(start.db, "held", 0, 0)
	p.prune(start.db, "held in the middle", int64(logBurst+p.backlog/2), 0)

	rare := p.listener(Spec{Name: "rare", Shards: 2}, "rare")
	taken = p.take(rare)
	p.read(rare, "rare", logBatch, 1)
	p.readNext(rare, taken, "rare", logBatch, logBatch)
	p.parked(p.listener(Spec{Name: "parks", ParkKeys: true}, "said"))
}

// A session keeps the plans that it made while nothing was parked. When much is parked, these plans read no more than a
// batch. They do not look up events whose keys sort before or after all parked keys, which would cost several pages per
// event.
func TestListenerPlansOutliveTheFirstParkedEvent(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	p := &logPlans{t: t, pool: pgtest.Database(t)}
	p.exec("ALTER TABLE outbox.parked SET (autovacuum_enabled = off)")
	l := p.listener(Spec{Name: "session"}, "said")
	p.fill(2000)
	p.exec("VACUUM ANALYZE") // now the planner knows that nothing is parked
	taken := p.take(l)
	const size, heads = 100, 1000
	const grow = `
		INSERT INTO outbox.parked (listener, key, seq, id, namespace, topic, version, payload, bucket, created_at, retry_after)
		SELECT 'session', 'away k' || n % 1000, -n, gen_random_uuid(), 'test', 'said', 1, '{}', n % 32768, statement_timestamp(),
			CASE WHEN n <= 1000 THEN statement_timestamp() + interval '1 hour' END
		FROM generate_series(1, 20000) AS n`
	worker, name := pgvalue.UUID(l.cfg.WorkerID), l.spec.Name
	for _, e := range []pgtest.Explained{
		{Name: "lease", Reads: heads, Sorts: 10, Call: func(q *queries.Queries) {
			_, _ = q.ListenerTakeLease(t.Context(), queries.ListenerTakeLeaseParams{
				WorkerID: worker, Lease: pgvalue.Interval(time.Hour), LeaseID: pgvalue.UUID(taken.ID), OneByOneSize: logBatch, Listener: name,
				ParkedLimit: core.MaxParkedKeys, AfterNo: taken.No,
			})
		}},
		{Name: "wait", Reads: 10, Sorts: 10, Call: func(q *queries.Queries) {
			_, _ = q.ListenerWait(t.Context(), queries.ListenerWaitParams{WorkerID: worker, Listener: name})
		}},
		{Name: "read", Reads: 3 * size, Sorts: 3 * size, Buffers: size, Call: func(q *queries.Queries) {
			_, _ = q.LogRead(t.Context(), queries.LogReadParams{
				Listener: name, WorkerID: worker, ScanSize: size, Topics: l.topics, KeyPrefixes: l.keyPrefixes, BatchSize: size,
			})
		}},
		{Name: "read on", Reads: size, Sorts: size, Buffers: size, Call: func(q *queries.Queries) {
			_, _ = q.LogReadNext(t.Context(), queries.LogReadNextParams{
				Topics: l.topics, KeyPrefixes: l.keyPrefixes, ScanSize: size, Listener: name, WorkerID: worker, LeaseNo: taken.No,
			})
		}},
		{Name: "take parked", Reads: heads, Sorts: heads, Call: func(q *queries.Queries) {
			_, _ = q.ParkedTake(t.Context(), queries.ParkedTakeParams{
				Listener: name, EventLimit: core.ParkedBatch, Shards: 1, WorkerID: worker, LeaseNo: taken.No, KeyLimit: config.ParkedKeyBatch,
			})
		}},
	} {
		e.Tables, e.Then = []string{"log", "parked"}, grow
		e.Run(t, l.db, p.pool, "force_generic_plan")
	}
}

// LogRead and LogReadNext check in the same way whether a key is parked, so a lease reads ahead what the next lease
// would read.
func TestReadNextFindsParkedKeysLikeRead(t *testing.T) {
	t.Parallel()
	asked := func(query string) string {
		_, lookup, ok := strings.Cut(query, "p.key >=")
		require.True(t, ok)
		lookup, _, ok = strings.Cut(lookup, "IS TRUE")
		require.True(t, ok)
		return strings.Join(strings.Fields(lookup), "")
	}
	require.Equal(t, asked(queries.LogRead), asked(queries.LogReadNext))
}
