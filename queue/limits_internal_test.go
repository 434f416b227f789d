package queue

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

type letter struct {
	TenantID uuid.UUID `json:"tenant_id"`
}

// letters returns a dispatcher of a topic with limits, and the topic.
func letters(t *testing.T, name string, limits ...outbox.Limit) (*Dispatcher, outbox.Topic[letter]) {
	t.Helper()
	topic := outbox.NewTopic[letter](outbox.TopicSpec{
		Namespace: "test", Name: "letter", Limits: limits,
		Keys: func(v any) outbox.Keys { return outbox.Keys{TenantID: outbox.Tenant(v.(*letter).TenantID)} },
	})
	d, err := NewDispatcher(pgtest.Pool(t, name), Config{}, Handle(topic, t, func(context.Context, outbox.Delivery[letter]) error { return nil }))
	require.NoError(t, err)
	require.NoError(t, d.declareLimits(t.Context(), d.topics))
	return d, topic
}

// TestOnlyTheUsualBatchGrows: a BatchSize that is set is the limit.
func TestOnlyTheUsualBatchGrows(t *testing.T) {
	t.Parallel()
	d, topic := letters(t, pgtest.URL(t, pgtest.Database(t)))
	require.True(t, d.machine.Grows)
	d, err := NewDispatcher(d.pool, Config{BatchSize: 100}, Handle(topic, t, func(context.Context, outbox.Delivery[letter]) error { return nil }))
	require.NoError(t, err)
	require.False(t, d.machine.Grows)
}

// TestNewestStartFilesEvents: processes with different limits do not file the events of a topic again and again: only those
// of the newest start do, and only once.
func TestNewestStartFilesEvents(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	url := pgtest.URL(t, pool)
	older, of := letters(t, url, outbox.Limit{Concurrency: 1})
	newer, _ := letters(t, url, outbox.Limit{Concurrency: 2}, outbox.Limit{Per: outbox.PerTenant, Concurrency: 1})
	turns := func() (turns []string) {
		return pgtest.Value[[]string](t, pool, "SELECT array_agg(turn ORDER BY id) FROM outbox.queue")
	}
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := of.EnqueueMany(t.Context(), tx, []letter{{uuid.UUID{1}}, {uuid.UUID{2}}})
		require.NoError(t, err)
	})
	old := turns()
	require.Equal(t, []string{older.limited[0].shape.Tag(), older.limited[0].shape.Tag()}, old)
	require.NoError(t, older.fileAll(t.Context(), nil))
	require.Equal(t, old, turns())
	require.NoError(t, newer.fileAll(t.Context(), nil))
	tag := newer.limited[0].shape.Tag()
	want := []string{tag + "/" + uuid.UUID{1}.String(), tag + "/" + uuid.UUID{2}.String()}
	require.Equal(t, want, turns())
	require.NoError(t, older.fileAll(t.Context(), nil))
	require.Equal(t, want, turns(), "the limits of the older process are not in force")
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.limits"))
	require.NoError(t, older.declareLimits(t.Context(), older.topics))
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.limits WHERE concurrency = 1"), "it has started again")
}

// TestEventsInFlightKeepTheirTurn: an event whose lease has run out while its handler runs here, or on its last attempt, is not
// filed: only then does a sweep or the handler's end find it.
func TestEventsInFlightKeepTheirTurn(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	url := pgtest.URL(t, pool)
	_, of := letters(t, url, outbox.Limit{Concurrency: 1})
	newer, _ := letters(t, url, outbox.Limit{Concurrency: 2}, outbox.Limit{Per: outbox.PerTenant, Concurrency: 1})
	ids := make([]uuid.UUID, 3)
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		receipts, err := of.EnqueueMany(t.Context(), tx, []letter{{uuid.UUID{1}}, {uuid.UUID{2}}, {uuid.UUID{3}}})
		require.NoError(t, err)
		for i, r := range receipts {
			ids[i] = r.ID
		}
	})
	pgtest.Execute(t, pool, `UPDATE outbox.queue SET attempts = CASE id WHEN $1 THEN max_attempts ELSE 1 END, locked_by = gen_random_uuid(),
		locked_until = CASE id WHEN $2 THEN now() + interval '1 h' ELSE now() - interval '1 s' END`, ids[0], ids[1])
	kept := func(inFlight ...uuid.UUID) int {
		require.NoError(t, newer.fileAll(t.Context(), inFlight))
		return pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue WHERE turn NOT LIKE $1 || '/%' AND locked_until IS NOT NULL", newer.limited[0].shape.Tag())
	}
	require.Equal(t, 3, kept(ids[2]))
	require.Equal(t, 2, kept())
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue WHERE id = $1 AND locked_until IS NULL", ids[2]))
}

// TestFullTurnsAreNotVisited: a claim that comes to turns whose limit is reached passes them all, and takes from the next that
// is not: one that has never run, and one whose lease has run out.
func TestFullTurnsAreNotVisited(t *testing.T) {
	t.Parallel()
	for _, limit := range []outbox.Limit{
		{Per: outbox.PerTenant, Concurrency: 1}, {Per: outbox.PerTenant, Rate: outbox.Rate{Events: 1, Period: time.Hour}},
	} {
		pool := pgtest.Database(t)
		const full = 5 * core.FreshTurns
		d, of := letters(t, pgtest.URL(t, pool), limit)
		enqueue := func(tenants ...byte) {
			var letters []letter
			for _, n := range tenants {
				letters = append(letters, letter{uuid.UUID{n}})
			}
			pgtest.InTx(t, pool, func(tx pgx.Tx) {
				_, err := of.EnqueueMany(t.Context(), tx, letters)
				require.NoError(t, err)
			})
		}
		for n := range byte(full) {
			enqueue(n+1, n+1)
		}
		for claimed := 0; claimed < full; {
			events, err := d.store.Claim(t.Context(), ClaimConfig{Topics: []string{"letter"}, BatchSize: 100})
			require.NoError(t, err)
			require.NotEmpty(t, events)
			claimed += len(events)
		}
		enqueue(full + 1)
		late := d.limited[0].shape.Of(uuid.UUID{full - 1}.String(), nil)
		pgtest.Execute(t, pool, "UPDATE outbox.queue SET locked_until = now() - interval '1 s' WHERE turn = $1 AND locked_until IS NOT NULL", late)
		rows, err := d.store.db.Each(pool).EventClaimTurns(t.Context(), d.store.turnsParams(&claim{Claim: core.Claim{
			Size: 10, Reclaims: 1,
			Turns: &core.TurnClaim{Hops: []core.Hop{{Lane: topiclane.OfTurns("letter")}}, Count: 1000, Idle: 10},
		}, lease: time.Minute}))
		require.NoError(t, err)
		claimed, reached := map[string]bool{}, map[string]bool{}
		for _, r := range rows {
			switch r.Kind {
			case 0:
				claimed[r.Turn] = true
			case 2:
				reached[r.Turn] = true
				require.Equal(t, limit.Concurrency == 0, r.CreatedAt.Valid, "the time when the rate allows more")
			}
		}
		want := map[string]bool{d.limited[0].shape.Of(uuid.UUID{full + 1}.String(), nil): true}
		if limit.Concurrency > 0 { // a reclaim is a start
			want[late] = true
		}
		require.Equal(t, want, claimed)
		require.GreaterOrEqual(t, len(reached), full-1)
	}
}

// claimTurns claims up to size events of known turns of tenants, and returns the kinds of what the claim says of each turn.
func claimTurns(t *testing.T, d *Dispatcher, size, reclaims int, tenants ...uuid.UUID) map[string][]int32 {
	t.Helper()
	var known []core.TurnStart
	for _, tenant := range tenants {
		known = append(known, core.TurnStart{Turn: core.Turn{Lane: topiclane.OfTurns("letter"), Key: d.limited[0].shape.Of(tenant.String(), nil)}})
	}
	rows, err := d.store.db.Each(d.pool).EventClaimTurns(t.Context(), d.store.turnsParams(&claim{
		Claim: core.Claim{Size: size, Reclaims: reclaims, Turns: &core.TurnClaim{Known: known, Idle: size}}, lease: time.Minute,
	}))
	require.NoError(t, err)
	kinds := make(map[string][]int32)
	for _, r := range rows {
		kinds[r.Turn] = append(kinds[r.Turn], r.Kind)
	}
	return kinds
}

// TestLimitReachedDuringAClaim: a claim that finds a limit reached only when it has locked the key says so. If it said nothing,
// the turn would be forgotten until a round.
func TestLimitReachedDuringAClaim(t *testing.T) {
	t.Parallel()
	for _, limit := range []outbox.Limit{
		{Per: outbox.PerTenant, Concurrency: 1}, {Per: outbox.PerTenant, Rate: outbox.Rate{Events: 1, Period: time.Hour}},
	} {
		pool := pgtest.Database(t)
		d, of := letters(t, pgtest.URL(t, pool), limit)
		tenant := uuid.UUID{1}
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			_, err := of.EnqueueMany(t.Context(), tx, []letter{{tenant}, {tenant}})
			require.NoError(t, err)
		})
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `WITH first AS (
				UPDATE outbox.queue SET locked_until = now() + interval '1 h', locked_by = gen_random_uuid(), attempts = 1, claim_no = 1
				WHERE id = (SELECT id FROM outbox.queue ORDER BY next_attempt_at, id LIMIT 1) RETURNING id)
			INSERT INTO outbox.limit_usage (namespace, topic, per, key, running, starts_at, starts)
			SELECT 'test', 'letter', 'tenant', $1, array[id], array[now()], array[1] FROM first`, tenant.String())
		require.NoError(t, err)
		said := make(chan map[string][]int32)
		go func() { said <- claimTurns(t, d, 10, 0, tenant) }()
		pgtest.Settles(t, pool, 1, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
		require.NoError(t, tx.Commit(t.Context()))
		require.Equal(t, []int32{2}, pgtest.Receive(t, said, "what the claim says")[d.limited[0].shape.Of(tenant.String(), nil)])
	}
}

// TestTurnsOfWhichSomethingIsLeft: a turn of which a full claim has left something has more.
func TestTurnsOfWhichSomethingIsLeft(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	d, of := letters(t, pgtest.URL(t, pool), outbox.Limit{Per: outbox.PerTenant, Concurrency: 1000})
	var tenants []uuid.UUID
	var all []letter
	for n := range byte(12) {
		tenants = append(tenants, uuid.UUID{n + 1})
		all = append(all, slices.Repeat([]letter{{uuid.UUID{n + 1}}}, 10)...)
	}
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := of.EnqueueMany(t.Context(), tx, all)
		require.NoError(t, err)
	})
	kinds := claimTurns(t, d, 100, 1, tenants...)
	claimed, more := 0, 0
	for _, turn := range tenants {
		of := kinds[d.limited[0].shape.Of(turn.String(), nil)]
		n := len(of)
		if slices.Contains(of, 1) {
			n, more = n-1, more+1
		}
		require.Equal(t, n < 10, slices.Contains(of, 1), "%d of a turn are claimed", n)
		claimed += n
	}
	require.Equal(t, 100, claimed)
	require.Positive(t, more)
}

// TestSlackOfARate: an event may begin as late as its claim asks for, between a 32nd and a quarter of the period, and its start
// counts for a period after that.
func TestSlackOfARate(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	const period = 320 * time.Second // so long that no machine is too busy
	d, of := letters(t, pgtest.URL(t, pool), outbox.Limit{Concurrency: 10}, outbox.Limit{Per: outbox.PerTenant, Rate: outbox.Rate{Events: 1, Period: period}})
	for i, slacks := range [][2]time.Duration{{0, period / 32}, {period / 8, period / 8}, {time.Hour, period / 4}} {
		asked, slack := slacks[0], slacks[1]
		tenant := uuid.UUID{byte(i + 1)}
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			_, err := of.Enqueue(t.Context(), tx, letter{tenant})
			require.NoError(t, err)
		})
		turn := d.limited[0].shape.Of(tenant.String(), nil)
		p := d.store.turnsParams(&claim{Claim: core.Claim{Size: 1, Turns: &core.TurnClaim{
			Known: []core.TurnStart{{Turn: core.Turn{Lane: topiclane.OfTurns("letter"), Key: turn}}}, Idle: 1, Slack: asked,
		}}, lease: time.Minute})
		rows, err := d.store.db.Each(pool).EventClaimTurns(t.Context(), p)
		require.NoError(t, err)
		require.Equal(t, int64(slack/time.Microsecond), *rows[0].UntilUs)
		counted := pgtest.Value[float64](t, pool, `
			SELECT extract(epoch FROM u.starts_at[1] - q.locked_until + interval '1 minute')
			FROM outbox.limit_usage AS u, outbox.queue AS q WHERE u.key = $1 AND q.turn = $2`, tenant.String(), turn)
		require.InDelta(t, slack.Seconds(), counted, (period / 32).Seconds(), "asked for %s", asked)
	}
}

// TestClaimsAheadOfARate: ahead of workers a claim takes a hundredth of what the rate of a key allows in a second, so that few
// starts are lost if the workers are busy.
func TestClaimsAheadOfARate(t *testing.T) {
	t.Parallel()
	for rate, want := range map[outbox.Rate][2]int{ // two workers are idle; what is claimed of one key, and of two together
		{Events: 99, Period: time.Second}:      {2, 2},
		{Events: 300, Period: time.Second}:     {5, 5},
		{Events: 300, Period: time.Minute}:     {2, 2},
		{Events: 900, Period: 3 * time.Second}: {5, 5},
		{Events: 2000, Period: time.Second}:    {12, 12},
	} {
		pool := pgtest.Database(t)
		d, of := letters(t, pgtest.URL(t, pool), outbox.Limit{Per: outbox.PerTenant, Rate: rate})
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			_, err := of.EnqueueMany(t.Context(), tx, slices.Repeat([]letter{{uuid.UUID{1}}}, 30))
			require.NoError(t, err)
			_, err = of.EnqueueMany(t.Context(), tx, slices.Repeat([]letter{{uuid.UUID{2}}}, 30))
			require.NoError(t, err)
		})
		for n, tenants := range [][]uuid.UUID{{{1}}, {{1}, {2}}} {
			var known []core.TurnStart
			for _, tenant := range tenants {
				known = append(known, core.TurnStart{Turn: core.Turn{Lane: topiclane.OfTurns("letter"), Key: d.limited[0].shape.Of(tenant.String(), nil)}})
			}
			rows, err := d.store.db.Each(d.pool).EventClaimTurns(t.Context(), d.store.turnsParams(&claim{
				Claim: core.Claim{Size: 50, Turns: &core.TurnClaim{Known: known, Idle: 2, Ahead: 10}}, lease: time.Minute,
			}))
			require.NoError(t, err)
			claimed := len(slices.DeleteFunc(rows, func(r queries.EventClaimTurnsRow) bool { return r.Kind != 0 }))
			require.Equal(t, want[n], claimed, "%s, %d keys", rate, n+1)
		}
	}
}

// TestUnusedKeysAreForgotten: rows of keys of which nothing is used are deleted when their starts do not count any more.
func TestUnusedKeysAreForgotten(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	d, topic := letters(t, pgtest.URL(t, pool), outbox.Limit{Per: outbox.PerTenant, Concurrency: 1})
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := topic.EnqueueMany(t.Context(), tx, []letter{{uuid.UUID{1}}, {uuid.UUID{2}}, {uuid.UUID{3}}})
		require.NoError(t, err)
	})
	claimed, err := d.store.Claim(t.Context(), ClaimConfig{})
	require.NoError(t, err)
	require.Len(t, claimed, 3)
	again, err := d.store.Claim(t.Context(), ClaimConfig{})
	require.NoError(t, err)
	require.Empty(t, again)
	_, err = d.store.Ack(t.Context(), claimed[:2]...)
	require.NoError(t, err)
	keys := func() int { return pgtest.Count(t, pool, "SELECT count(*) FROM outbox.limit_usage") }
	require.Equal(t, 3, keys())
	last, err := d.pruneUsage(t.Context(), queries.LimitPruneRow{})
	require.NoError(t, err)
	require.Equal(t, 3, keys(), "they were used a moment ago")
	require.NotEmpty(t, last.Key)
	pgtest.Execute(t, pool, "UPDATE outbox.limit_usage SET updated_at = now() - interval '2 min'")
	pgtest.Execute(t, pool, `INSERT INTO outbox.limits (namespace, topic, per, counted_as, nth, tag, part, rate, period)
		VALUES ('test', 'other', '', 'other', 1, 'tag', 0, 1, '2 min')`)
	_, err = d.pruneUsage(t.Context(), queries.LimitPruneRow{})
	require.NoError(t, err)
	require.Equal(t, 3, keys(), "starts of another topic, which another dispatcher takes, may count")
	pgtest.Execute(t, pool, "UPDATE outbox.limits SET period = '1 s' WHERE topic = 'other'")
	_, err = d.pruneUsage(t.Context(), queries.LimitPruneRow{})
	require.NoError(t, err)
	require.Equal(t, 1, keys(), "one is leased")
	last, err = d.pruneUsage(t.Context(), last)
	require.NoError(t, err)
	require.Empty(t, last.Key, "then from the beginning")
}
