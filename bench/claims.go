package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/bench/events"
	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
	"github.com/outboxgen/outboxgen/internal/postgres/turn"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

const (
	claimSize   = 100
	claimRounds = 60
)

// ourTenant and otherTenant are two tenants.
var ourTenant, otherTenant = uuid.New(), uuid.New()

// takeTurns gives r, of one tenant, the turn that its events have in a topic with fairness by tenant.
func (r *rows) takeTurns() {
	r.lane, r.turn = topiclane.OfTurns(r.topic), turn.ShapeOf(r.topic, true, nil).Of(r.tenant.UUID.String(), nil)
}

// A situation is what else is in the tables while 100 events of one topic are claimed.
type situation struct {
	name    string
	topic   *outbox.UntypedTopic // nil means order_paid, claimed without a filter by tenant
	others  []rows
	passing int           // events that are delivered while a snapshot is held open
	timeout time.Duration // statement_timeout of the claims
	base    string        // name of the situation that this one is compared with; "" means none
}

// of returns n rows of a topic.
func of(n int, topic *outbox.UntypedTopic) rows {
	spec := topic.Spec()
	return rows{n: n, namespace: spec.Namespace, topic: spec.Name, lane: laneOf(topic), due: "clock_timestamp() - interval '10 minutes'"}
}

func situations(history int) []situation {
	const empty, emptyTenant, emptyFair = "empty tables", "one tenant, empty tables", "one tenant, empty tables, fairness"
	paid, shipped, billed := events.OrderPaidTopic.Untyped(), events.OrderShippedTopic.Untyped(), events.OrderBilledTopic.Untyped()
	delivered, scheduled, inFlight := of(history, paid), of(history, paid), of(history/100, paid)
	delivered.delivered, scheduled.due, inFlight.lockedUntil = true, "now() + interval '1 day'", "now() + interval '1 hour'"
	unhandled := of(history*2/5, paid)
	unhandled.topic = "order_ignored"
	sameLane := unhandled
	unhandled.lane = topiclane.Of(unhandled.topic)
	other, otherFair := of(history/5, shipped), of(history/5, billed)
	other.tenant = outbox.Tenant(otherTenant)
	otherFair.tenant = other.tenant
	otherFair.takeTurns()
	return []situation{
		{name: empty},
		{name: fmt.Sprintf("%d delivered", delivered.n), others: []rows{delivered}, base: empty},
		{name: fmt.Sprintf("%d scheduled", scheduled.n), others: []rows{scheduled}, base: empty},
		{name: fmt.Sprintf("%d in flight", inFlight.n), others: []rows{inFlight}, base: empty},
		{name: fmt.Sprintf("%d unhandled", unhandled.n), others: []rows{unhandled}, base: empty},
		{name: fmt.Sprintf("%d unhandled in one lane with ours", sameLane.n), others: []rows{sameLane}, base: empty},
		{name: fmt.Sprintf("%d unhandled, statement_timeout 150 ms", sameLane.n), others: []rows{sameLane}, timeout: 150 * time.Millisecond, base: empty},
		{name: fmt.Sprintf("snapshot held for %d events", history*3/20), passing: history * 3 / 20, base: empty},
		{name: emptyTenant, topic: shipped},
		{name: fmt.Sprintf("one tenant, %d of another", other.n), topic: shipped, others: []rows{other}, base: emptyTenant},
		{name: emptyFair, topic: billed},
		{name: fmt.Sprintf("one tenant, %d of another, fairness", otherFair.n), topic: billed, others: []rows{otherFair}, base: emptyFair},
	}
}

// prepare fills the tables. The pool is for the claims.
func (s situation) prepare(ctx context.Context, db *database, tracer pgx.QueryTracer) (*pgxpool.Pool, error) {
	for _, r := range s.others {
		if err := r.insert(ctx, db); err != nil {
			return nil, err
		}
	}
	if err := db.vacuum(ctx); err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(db.url)
	if err != nil {
		return nil, err
	}
	cfg.ConnConfig.Tracer = tracer
	if s.timeout > 0 {
		cfg.ConnConfig.RuntimeParams["statement_timeout"] = strconv.FormatInt(s.timeout.Milliseconds(), 10)
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return pool, db.settle(ctx)
}

// holdSnapshot begins a transaction that keeps every row version from now on. The caller rolls it back.
func holdSnapshot(ctx context.Context, db *database) (pgx.Tx, error) {
	tx, err := db.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return nil, err
	}
	_, err = tx.Exec(ctx, "SELECT count(*) FROM outbox.queue")
	return tx, err
}

// enqueue commits n events of ours in one transaction, numbered from a first one.
func (s situation) enqueue(ctx context.Context, db *database, first, n int) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) (err error) {
		if s.topic == nil {
			ps := make([]events.OrderPaid, n)
			for i := range ps {
				ps[i] = order(first + i)
			}
			_, err = events.EnqueueOrderPaidMany(ctx, tx, ps)
			return err
		}
		return enqueueFor(ctx, tx, s.topic, ourTenant, first, n)
	})
}

// enqueueFor enqueues n events of a topic of namespace bench_tenants.
func enqueueFor(ctx context.Context, tx pgx.Tx, topic *outbox.UntypedTopic, tenant uuid.UUID, first, n int) (err error) {
	ps := make([]events.OrderBilled, n)
	for i := range ps {
		ps[i] = events.OrderBilled{TenantID: tenant, OrderID: uuid.New(), Seq: int64(first + i), Note: note}
	}
	switch topic {
	case events.OrderBilledTopic.Untyped():
		_, err = events.EnqueueOrderBilledMany(ctx, tx, ps)
	case events.OrderShippedTopic.Untyped():
		_, err = events.EnqueueOrderShippedMany(ctx, tx, convert[events.OrderShipped](ps))
	default:
		_, err = events.EnqueueOrderReturnedMany(ctx, tx, convert[events.OrderReturned](ps))
	}
	return err
}

func convert[P ~struct {
	TenantID uuid.UUID `json:"tenant_id"`
	OrderID  uuid.UUID `json:"order_id"`
	Seq      int64     `json:"seq"`
	Note     string    `json:"note"`
}](from []events.OrderBilled) []P {
	ps := make([]P, len(from))
	for i, p := range from {
		ps[i] = P(p)
	}
	return ps
}

// claimTracer times the round trips that claim a full batch and settle nothing.
type claimTracer struct {
	mu    sync.Mutex
	times []float64 // in ms
}

type tracedBatch struct {
	began   time.Time
	claimed int64
	settled bool
}

type tracedBatchKey struct{}

func (*claimTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (*claimTracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (*claimTracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return context.WithValue(ctx, tracedBatchKey{}, &tracedBatch{began: time.Now()})
}

func (*claimTracer) TraceBatchQuery(ctx context.Context, _ *pgx.Conn, q pgx.TraceBatchQueryData) {
	b, ok := ctx.Value(tracedBatchKey{}).(*tracedBatch)
	switch {
	case !ok:
	case isClaim(q.SQL) && q.CommandTag.Select():
		b.claimed += q.CommandTag.RowsAffected()
	case strings.Contains(q.SQL, "delivered"):
		b.settled = true
	}
}

// isClaim reports whether a statement claims events: by itself, or by the function for those that have turns.
func isClaim(sql string) bool {
	return strings.Contains(sql, "SKIP LOCKED") || strings.Contains(sql, "claim_turns(")
}

func (t *claimTracer) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, end pgx.TraceBatchEndData) {
	b, ok := ctx.Value(tracedBatchKey{}).(*tracedBatch)
	if !ok || end.Err != nil || b.settled || b.claimed < claimSize {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.times = append(t.times, milliseconds(time.Since(b.began)))
}

// take returns the times since the last call.
func (t *claimTracer) take() []float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	times := t.times
	t.times = nil
	return times
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// dispatch returns the median round trip of the claims of a running dispatcher, each of 100 events that were just
// committed.
func (s situation) dispatch(ctx context.Context, db *database) (figure float64, err error) {
	const warmUp = 2 * time.Second
	tracer := &claimTracer{}
	pool, err := s.prepare(ctx, db, tracer)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	if s.passing > 0 {
		snapshot, err := holdSnapshot(ctx, db)
		if err != nil {
			return 0, err
		}
		defer func() { _ = snapshot.Rollback(context.WithoutCancel(ctx)) }()
	}
	handled := make(chan struct{}, 1000)
	work := func(context.Context, int64) { handled <- struct{}{} }
	// A claim that follows a notification takes half a batch, and leaves the rest of the room to the next one.
	cfg := queue.Config{BatchSize: 2 * claimSize, PruneInterval: -1, Logger: quiet}
	var d *queue.Dispatcher
	if s.topic == nil {
		d, err = events.NewBenchDispatcher(pool, &events.BenchHandler{Work: work}, cfg)
	} else {
		cfg.TenantIDs = []uuid.UUID{ourTenant}
		d, err = events.NewBenchTenantsDispatcher(pool, &events.BenchTenantsHandler{Work: work}, cfg)
	}
	if err != nil {
		return 0, err
	}
	stop := sync.OnceValue(background(ctx, d.Run))
	defer func() { err = errors.Join(err, stop()) }()
	total := 0
	round := func(n int) error {
		if err := s.enqueue(ctx, db, total, n); err != nil {
			return err
		}
		total += n
		late := time.NewTimer(time.Minute)
		defer late.Stop()
		for i := range n {
			select {
			case <-handled:
			case <-late.C:
				return fmt.Errorf("%d of %d events were not handled within a minute", n-i, n)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	for total < s.passing {
		if err := round(10 * claimSize); err != nil {
			return 0, err
		}
	}
	settled := func() { pause(ctx, 10*time.Millisecond) } // so that the next claim settles nothing
	for began := time.Now(); time.Since(began) < warmUp; settled() {
		if err := round(claimSize); err != nil {
			return 0, err
		}
	}
	tracer.take()
	var times []float64
	rounds := 0
	// On a fast machine many claims find a part of a batch, or settle something too. These are left out.
	for ; rounds < claimRounds || len(times) < claimRounds/2 && rounds < 20*claimRounds; rounds++ {
		if err := round(claimSize); err != nil {
			return 0, err
		}
		settled()
		times = append(times, tracer.take()...)
	}
	if len(times) < claimRounds/2 {
		return 0, fmt.Errorf("%d claims of a full batch in %d rounds, want %d", len(times), rounds, claimRounds/2)
	}
	if err := stop(); err != nil {
		return 0, err
	}
	return median(times), s.check(ctx, db, total)
}

// check reports an event of ours that was not delivered by its first attempt.
func (s situation) check(ctx context.Context, db *database, total int) error {
	return db.count(ctx, total, "delivered", "SELECT count(*) FROM outbox.delivered WHERE attempts = 1 AND finalized_at > now() - interval '30 minutes'")
}

func (s situation) store(pool *pgxpool.Pool) (*queue.Store, queue.ClaimConfig, error) {
	topic, cfg := events.OrderPaidTopic.Untyped(), queue.ClaimConfig{BatchSize: claimSize}
	if s.topic != nil {
		topic, cfg.TenantIDs = s.topic, []uuid.UUID{ourTenant}
	}
	cfg.Topics = []string{topic.Spec().Name}
	store, err := queue.NewStore(pool, queue.StoreConfig{Namespace: topic.Spec().Namespace})
	return store, cfg, err
}

// claim returns the median time of Store.Claim, for 100 events at a time that were just committed.
func (s situation) claim(ctx context.Context, db *database) (float64, error) {
	pool, err := s.prepare(ctx, db, nil)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	store, cfg, err := s.store(pool)
	if err != nil {
		return 0, err
	}
	total := 0
	round := func(size int) (time.Duration, error) {
		if err := s.enqueue(ctx, db, total, size); err != nil {
			return 0, err
		}
		total += size
		var took time.Duration
		for size > 0 { // a claim ends where it has found something, and may have found only a part of them
			cfg.BatchSize = size
			began := time.Now()
			claimed, err := store.Claim(ctx, cfg)
			took += time.Since(began)
			if err == nil && len(claimed) == 0 {
				err = fmt.Errorf("no events claimed, want %d more", size)
			}
			if err == nil {
				_, err = store.Ack(ctx, claimed...)
			}
			if err != nil {
				return 0, err
			}
			size -= len(claimed)
		}
		return took, nil
	}
	if s.passing > 0 {
		snapshot, err := holdSnapshot(ctx, db)
		if err != nil {
			return 0, err
		}
		defer func() { _ = snapshot.Rollback(context.WithoutCancel(ctx)) }()
	}
	for total < s.passing {
		if _, err := round(10 * claimSize); err != nil {
			return 0, err
		}
	}
	var times []float64
	for i := range claimRounds + claimRounds/5 {
		took, err := round(claimSize)
		if err != nil {
			return 0, err
		}
		if i >= claimRounds/5 { // the first ones have cold plans and connections
			times = append(times, milliseconds(took))
		}
	}
	return median(times), s.check(ctx, db, total)
}

// claimWithCursor returns the time per 100 events that a loop with a cursor spends in Store.Claim, for 500 events.
func (s situation) claimWithCursor(ctx context.Context, db *database) (float64, error) {
	const batches, rounds = 5, 8
	pool, err := s.prepare(ctx, db, nil)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	store, cfg, err := s.store(pool)
	if err != nil {
		return 0, err
	}
	var times []float64
	for round := range rounds {
		if err := s.enqueue(ctx, db, round*batches*claimSize, batches*claimSize); err != nil {
			return 0, err
		}
		cfg.Cursor = &queue.Cursor{}
		var took time.Duration
		for !cfg.Cursor.Done() {
			began := time.Now()
			claimed, err := store.Claim(ctx, cfg)
			took += time.Since(began)
			if err != nil {
				return 0, err
			}
			if _, err := store.Ack(ctx, claimed...); err != nil {
				return 0, err
			}
		}
		if round > 0 {
			times = append(times, milliseconds(took)/batches)
		}
	}
	return median(times), s.check(ctx, db, rounds*batches*claimSize)
}

// claims compares claims of 100 in several situations with the same claim on tables that are otherwise empty.
func claims(history int) []workload {
	dispatched := workload{
		name: "claims-dispatcher", title: "claim of 100 by a running dispatcher", unit: "ms", lessIsBetter: true, few: true,
		about: "The round trip that claims 100 events which were just committed, after the dispatcher has run for two seconds. " +
			"Unhandled: due events of a topic that nobody here handles. Of another: due events of another tenant, which TenantIDs leave out.",
	}
	called := workload{
		name: "claims-store", title: "claim of 100 by Store.Claim", unit: "ms", lessIsBetter: true, few: true,
		about: "The calls, usually one, that claim 100 events which were just committed, filtered by topic, and by tenant where that is said. " +
			"With a cursor: the time per 100 events of a loop that drains 500.",
	}
	for _, s := range situations(history) {
		dispatched.contenders = append(dispatched.contenders, contender{s.name, s.dispatch})
		called.contenders = append(called.contenders, contender{s.name, s.claim})
		if s.topic == events.OrderShippedTopic.Untyped() {
			called.contenders = append(called.contenders, contender{s.name + ", with a cursor", s.claimWithCursor})
		}
		if s.base == "" {
			continue
		}
		dispatched.targets = append(dispatched.targets, target{of: s.name, to: s.base, atMost: 1.5})
		called.targets = append(called.targets, target{of: s.name, to: s.base, atMost: 2})
		if s.topic == events.OrderShippedTopic.Untyped() {
			called.targets = append(called.targets, target{of: s.name + ", with a cursor", to: s.base + ", with a cursor", atMost: 3})
		}
	}
	return []workload{dispatched, called}
}
