package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
	"github.com/outboxgen/outboxgen/internal/postgres/turn"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

const turnKeys = 2_000 // other keys with an event each

// turnBacklog returns how many events the one key has: OUTBOXGEN_PLAN_BACKLOG, if it is set.
func turnBacklog(t *testing.T) int {
	t.Helper()
	text := os.Getenv("OUTBOXGEN_PLAN_BACKLOG")
	if text == "" {
		return 100_000
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// turnPlans are claims of a topic with one key that is at its limit and has very many events.
type turnPlans struct {
	pool  *pgxpool.Pool
	store *Store
	shape turn.Shape
	lane  int32
	early *pgx.Conn // has its plans from when the tables were empty
}

func newTurnPlans(t *testing.T) *turnPlans {
	t.Helper()
	p := &turnPlans{pool: pgtest.Database(t), shape: turn.ShapeOf("full", false, []string{"{secret}"}), lane: topiclane.OfTurns("full")}
	var err error
	p.store, err = NewStore(p.pool, StoreConfig{Namespace: "test"})
	require.NoError(t, err)
	p.store.limitMet.Store(time.Now().Add(time.Hour).UnixNano()) // known turns are claimed by claim_turns
	for _, table := range []string{"events", "queue", "limits", "limit_usage"} {
		pgtest.Execute(t, p.pool, "ALTER TABLE outbox."+table+" SET (autovacuum_enabled = off)")
		pgtest.Execute(t, p.pool, "ANALYZE outbox."+table) // statistics of the empty table
	}
	p.early = p.connect(t)
	p.limit(t, "{secret}", 1, 1)
	for name := range p.claims() {
		p.cost(t, p.early, "force_generic_plan", name)
	}
	p.fill(t, 1, turnBacklog(t), "busy")
	p.fill(t, turnKeys, 1, "other")
	pgtest.Execute(t, p.pool, `UPDATE outbox.queue SET locked_until = now() + interval '1 h', locked_by = gen_random_uuid(), attempts = 1, claim_no = 1
		WHERE id = (SELECT id FROM outbox.queue WHERE turn LIKE '%busy' ORDER BY next_attempt_at, id LIMIT 1)`)
	return p
}

func (p *turnPlans) connect(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pgtest.URL(t, p.pool))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// limit makes a limit the only one, which one event that runs and one start use up.
func (p *turnPlans) limit(t *testing.T, per string, concurrency, rate int) {
	t.Helper()
	pgtest.Execute(t, p.pool, "TRUNCATE outbox.limits, outbox.limit_usage")
	pgtest.Execute(t, p.pool, `INSERT INTO outbox.limits (namespace, topic, per, counted_as, nth, tag, part, concurrency, rate, period)
		VALUES ('test', 'full', $1, 'full', 1, $2, $3, $4, $5, '1 h')`, per, p.shape.Tag(), p.shape.Part(per), concurrency, rate)
	pgtest.Execute(t, p.pool, `INSERT INTO outbox.limit_usage (namespace, topic, per, key, running, starts_at, starts)
		SELECT 'test', 'full', $1, CASE WHEN $1 = '' THEN '' ELSE 'busy' END, array(SELECT id FROM outbox.queue WHERE locked_until IS NOT NULL), array[now()], array[1]`, per)
}

// fill adds keys with so many due events each. Those of one key are due before the others.
func (p *turnPlans) fill(t *testing.T, keys, each int, key string) {
	t.Helper()
	pgtest.Execute(t, p.pool, `WITH e AS (
			INSERT INTO outbox.events (namespace, topic, payload) SELECT 'test', 'full', '{"text": "some hundred bytes of payload, as events have"}'
			FROM generate_series(1, $2::int * $3::int) RETURNING id),
		n AS (SELECT e.id, row_number() OVER () AS n FROM e)
		INSERT INTO outbox.queue (id, namespace, topic, lane, turn, next_attempt_at)
		SELECT n.id, 'test', 'full', $1, $4::text || '/' || $5::text || CASE WHEN $2 > 1 THEN (n.n % $2)::text ELSE '' END,
			statement_timestamp() - CASE WHEN $2 > 1 THEN interval '1 min' ELSE interval '1 h' END + n.n * interval '1 us' FROM n`, p.lane, keys, each, p.shape.Tag(), key)
}

// bounds are how many rows and pages a claim may read.
type bounds struct{ rows, blocks float64 }

// claims returns the kinds of claims, with their bounds.
func (p *turnPlans) claims() map[string]turnKind {
	turnOf := func(key string) core.TurnStart {
		return core.TurnStart{Turn: core.Turn{Lane: p.lane, Key: p.shape.Of("", []string{key})}}
	}
	known := []core.TurnStart{turnOf("busy")}
	for n := range 24 {
		known = append(known, turnOf(fmt.Sprint("other", n)))
	}
	hops := []core.Hop{{Lane: p.lane}}
	front := []core.Start{{Lane: p.lane, After: core.Place{Due: time.Now().Add(-2 * time.Hour)}}}
	const piece, count = 500, 64
	return map[string]turnKind{
		"the key":               {core.TurnClaim{Known: known[:1]}, 0, bounds{500, 100}},
		"known keys":            {core.TurnClaim{Known: known}, 0, bounds{500, 2000}},
		"a round":               {core.TurnClaim{Hops: hops, Count: count}, 0, bounds{1000, 3500}},
		"a round that reclaims": {core.TurnClaim{Hops: hops, Count: count}, core.ReclaimsPerClaim, bounds{1000, 3500}},
		"the front":             {core.TurnClaim{Front: front, Piece: piece}, 0, bounds{500 + piece, 100 + piece}},
		"everything":            {core.TurnClaim{Known: known, Front: front, Piece: piece, Hops: hops, Count: count}, 5, bounds{1500 + piece, 5500 + piece}},
	}
}

// turnKind is a kind of claim.
type turnKind struct {
	claim    core.TurnClaim
	reclaims int
	bounds
}

// cost makes a claim that is rolled back, and returns what it has read, and how many events it has claimed.
func (p *turnPlans) cost(t *testing.T, conn *pgx.Conn, mode, kind string) (cost bounds, claimed int) {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	require.NoError(t, p.store.db.On(tx).SessionGuard(t.Context()))
	_, err = tx.Exec(t.Context(), "SELECT set_config('plan_cache_mode', $1, true), set_config('statement_timeout', '60s', true)", mode)
	require.NoError(t, err)
	k := p.claims()[kind]
	k.claim.Idle = 100
	part := &claim{Claim: core.Claim{Size: 100, Reclaims: k.reclaims, Topics: []string{"full"}, Turns: &k.claim, Paused: core.NoPauses}, lease: time.Minute}
	text, args := p.store.db.Record(func(q *queries.Queries) { p.store.claimFrom(t.Context(), q, part) })
	args = append([]any{pgx.QueryExecModeSimpleProtocol}, args...)
	for range 2 { // loads the catalogue and makes the plans
		_, err = tx.Exec(t.Context(), "SAVEPOINT warm")
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), text, args...)
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), "ROLLBACK TO warm")
		require.NoError(t, err)
	}
	const read = `SELECT sum(pg_stat_get_xact_tuples_returned(c.oid))::float8 FROM pg_class AS c WHERE c.relnamespace = 'outbox'::regnamespace`
	before := pgtest.Value[float64](t, tx, read)
	var out []byte
	require.NoError(t, tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+text, args...).Scan(&out))
	var plans []struct{ Plan pgtest.PlanNode }
	require.NoError(t, json.Unmarshal(out, &plans))
	cost = bounds{pgtest.Value[float64](t, tx, read) - before, plans[0].Plan.Hit + plans[0].Plan.Read}
	return cost, pgtest.Value[int](t, tx, "SELECT count(*) FROM outbox.queue WHERE locked_by = $1", p.store.worker)
}

// TestClaimsDoNotWalkWhatWaitsAtALimit: however many events wait at the limit of a key, or of the topic, and whatever the
// statistics say, a claim reads a few rows and pages.
func TestClaimsDoNotWalkWhatWaitsAtALimit(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	p := newTurnPlans(t)
	const custom, generic = "force_custom_plan", "force_generic_plan"
	for _, statistics := range []string{"empty", "fresh", "one key"} {
		switch statistics {
		case "fresh":
			pgtest.Execute(t, p.pool, "ANALYZE outbox.events, outbox.queue, outbox.limits, outbox.limit_usage")
		case "one key": // what they say of a tenant's burst: all events are of one turn
			pgtest.Execute(t, p.pool, "DELETE FROM outbox.queue WHERE turn LIKE '%other%'")
			pgtest.Execute(t, p.pool, "ANALYZE outbox.queue")
			p.fill(t, turnKeys, 1, "other")
		}
		filing := pgtest.Explained{Name: "misfiled", Reads: 1, Sorts: 1, Call: func(q *queries.Queries) {
			_, _ = q.LimitMisfiled(t.Context(), queries.LimitMisfiledParams{
				Namespace: "test", Topic: "full", Lane: topiclane.Of("full"), TurnLane: p.lane, Tag: p.shape.Tag(), BatchSize: filePiece, InFlight: []pgtype.UUID{},
			})
		}}
		filing.Run(t, p.store.db, p.pool, custom)
		filing.Run(t, p.store.db, p.pool, generic)
		for _, l := range []struct {
			name, per         string
			concurrency, rate int
		}{{"concurrency of a key", "{secret}", 1, 9}, {"rate of a key", "{secret}", 9, 1}, {"concurrency of the topic", "", 1, 9}, {"rate of the topic", "", 9, 1}} {
			p.limit(t, l.per, l.concurrency, l.rate)
			fresh := p.connect(t)
			for kind, k := range p.claims() {
				for mode, conn := range map[string]*pgx.Conn{custom: fresh, generic: fresh, "cached " + generic: p.early} {
					cost, claimed := p.cost(t, conn, strings.TrimPrefix(mode, "cached "), kind)
					t.Logf("%-24s %-21s %-5s %-25s %.0f rows, %.0f pages, claimed %d", l.name, kind, statistics, mode, cost.rows, cost.blocks, claimed)
					require.LessOrEqual(t, cost.rows, k.rows, "%s, %s, %s, %s: rows", l.name, kind, statistics, mode)
					require.LessOrEqual(t, cost.blocks, k.blocks, "%s, %s, %s, %s: pages", l.name, kind, statistics, mode)
					require.Equal(t, l.per != "" && kind != "the key" && kind != "the front", claimed > 0, "%s, %s: others do not wait", l.name, kind)
				}
			}
		}
	}

	// Without limits a statement of its own claims from known turns.
	pgtest.Execute(t, p.pool, "TRUNCATE outbox.limits, outbox.limit_usage")
	p.store.limitMet.Store(0)
	for _, mode := range []string{custom, generic} {
		cost, claimed := p.cost(t, p.connect(t), mode, "known keys")
		require.Positive(t, claimed, mode)
		require.LessOrEqual(t, cost.rows, 500.0, "%s: rows", mode)
		require.LessOrEqual(t, cost.blocks, 2000.0, "%s: pages", mode)
	}
}
