package queue

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue/internal/core"
	"github.com/outboxgen/outboxgen/queue/internal/core/simtest"
)

const (
	tableSteps = 150
	tableLease = time.Minute
	tableGrace = 20 * time.Second
	tableBin   = 10 * time.Second // all times in the tables are multiples of it, so that little depends on how long a step takes
)

// tableModel does the same at random on the real tables and on the model that simtest has of them, and compares the
// answers and the rows.
type tableModel struct {
	t      testing.TB
	rnd    *rand.Rand
	pool   *pgxpool.Pool
	stores []*Store
	table  *simtest.Table
	byID   map[uuid.UUID]*simtest.Row
	held   [][]*Claimed // by worker, also those that are over
	topics []string     // every second seed has so many that one claim does not come to all
	trace  []string
	stats  map[string]int
}

func newTableModel(t testing.TB, seed uint64) *tableModel {
	m := &tableModel{
		t: t, rnd: rand.New(rand.NewPCG(seed, 0)), pool: pgtest.Database(t), table: simtest.NewTable(),
		byID: make(map[uuid.UUID]*simtest.Row), held: make([][]*Claimed, 3), topics: []string{"one", "two", "three"},
		stats: make(map[string]int),
	}
	if seed%2 == 0 {
		for i := range 15 {
			m.topics = append(m.topics, fmt.Sprint("more", i))
		}
	}
	for range m.held {
		s, err := NewStore(m.pool, StoreConfig{Namespace: "jobs"})
		require.NoError(t, err)
		m.stores = append(m.stores, s)
	}
	return m
}

func (m *tableModel) note(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf(format, args...))
}

func (m *tableModel) equal(want, got any, what string) {
	m.t.Helper()
	require.Equal(m.t, want, got, "%s: the model says the first, PostgreSQL the second, after\n%v", what, m)
}

// String returns the latest steps.
func (m *tableModel) String() string {
	text := ""
	for _, line := range m.trace[max(len(m.trace)-20, 0):] {
		text += line + "\n"
	}
	return text
}

func (m *tableModel) now() time.Time {
	return pgtest.Value[time.Time](m.t, m.pool, "SELECT clock_timestamp()")
}

// enqueue enqueues events, and sometimes rolls that back.
func (m *tableModel) enqueue() {
	tx := pgtest.Begin(m.t, m.pool, pgx.TxOptions{})
	var rows []*simtest.Row
	for range 1 + m.rnd.IntN(8) {
		r := &simtest.Row{
			Topic: m.topics[m.rnd.IntN(len(m.topics))], Tenant: uuid.UUID{byte(1 + m.rnd.IntN(3))}, Version: 1 + m.rnd.IntN(2), Max: 1 + m.rnd.IntN(3),
		}
		r.Lane = topiclane.Of(r.Topic)
		require.NoError(m.t, tx.QueryRow(m.t.Context(),
			"SELECT id FROM outbox.enqueue('jobs', $1, '{}', $2, version => $3, max_attempts => $4)", r.Topic, r.Tenant, r.Version, r.Max,
		).Scan(&r.ID))
		require.NoError(m.t, tx.QueryRow(m.t.Context(), `
			UPDATE outbox.queue SET next_attempt_at = date_bin('10 s', clock_timestamp(), '2000-01-01 UTC') - $2 * interval '10 s' WHERE id = $1
			RETURNING next_attempt_at`, r.ID, m.rnd.IntN(12)-3).Scan(&r.Due))
		rows = append(rows, r)
	}
	if m.rnd.IntN(6) == 0 {
		require.NoError(m.t, tx.Rollback(m.t.Context()))
		m.note("%d events are rolled back", len(rows))
		return
	}
	require.NoError(m.t, tx.Commit(m.t.Context()))
	m.table.Add(rows...)
	for _, r := range rows {
		m.byID[r.ID] = r
	}
	m.note("%d events", len(rows))
}

// someHeld returns up to n claims of a worker, which it forgets or keeps: then they are settled again.
func (m *tableModel) someHeld(w, n int) []*Claimed {
	all := m.held[w]
	m.rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	n = min(n, len(all))
	if m.rnd.IntN(3) > 0 {
		m.held[w] = all[n:]
	}
	return slices.Clone(all[:n])
}

// paused returns what is paused for a statement.
func (m *tableModel) paused() *core.Pauses {
	switch m.rnd.IntN(5) {
	case 0:
		return core.PausesOf(false, []string{m.topics[m.rnd.IntN(3)]})
	case 1:
		return core.PausesOf(false, []string{uuid.UUID{byte(1 + m.rnd.IntN(3))}.String(), "two/" + uuid.UUID{1}.String()})
	}
	return core.NoPauses
}

// query draws a claim.
func (m *tableModel) query(w int) (q *core.Claim, version int) {
	q = &core.Claim{
		Size: 1 + m.rnd.IntN(8), Topics: slices.Clone(m.topics[:1+m.rnd.IntN(len(m.topics))]), Paused: m.paused(),
	}
	if len(m.topics) > 3 {
		q.Size = 1 + q.Size/4
	}
	piece := 1 + m.rnd.IntN(20)
	for _, lane := range core.LanesOf(q.Topics) {
		s := core.Start{Lane: lane, Quota: 1 + m.rnd.IntN(4)}
		if rows := m.table.Pending(); len(rows) > 0 && m.rnd.IntN(4) == 0 {
			at := rows[m.rnd.IntN(len(rows))]
			s.After = core.Place{Due: at.Due, ID: at.ID}
		}
		q.Starts = append(q.Starts, s)
	}
	if m.rnd.IntN(3) > 0 {
		for i := range q.Starts {
			q.Starts[i].Piece = piece
		}
		q.Reclaims = m.rnd.IntN(4)
		for _, c := range m.held[w] {
			if m.rnd.IntN(8) == 0 {
				q.InFlight = append(q.InFlight, c.ID)
			}
		}
	}
	return q, 1 + m.rnd.IntN(2)
}

func (m *tableModel) versions(newest int) *versions {
	known := make(map[string]int)
	for _, topic := range m.topics {
		known[topic] = newest
	}
	return versionsOf(known)
}

// claim claims from both.
func (m *tableModel) claim(w int) {
	q, version := m.query(w)
	x := roundTrip{claim: &claim{Claim: *q, lease: tableLease, versions: m.versions(version)}}
	require.NoError(m.t, m.stores[w].roundTrip(m.t.Context(), &x))
	m.note("worker %d claims %+v of versions up to %d", w, q, version)
	now := x.found.At
	picked, found := m.table.Claim(now, &simtest.Query{Claim: q, Version: version})
	var want, got []string
	for _, r := range picked {
		again := m.table.Lease(r, m.stores[w].worker, now, tableLease)
		want = append(want, fmt.Sprint(r.ID, " ", r.Topic, " v", r.Version, " attempt ", r.Attempts, " of ", r.Max, " claim ", r.ClaimNo, " ", again))
	}
	for _, c := range x.claimed {
		got = append(got, fmt.Sprint(c.ID, " ", c.Topic, " v", c.Version, " attempt ", c.Attempt, " of ", c.MaxAttempts, " claim ", c.ClaimNo, " ",
			c.Reclaimed))
	}
	m.equal(want, got, "claimed")
	m.equal(ends(found.Ends), ends(x.found.Ends), "ends")
	m.held[w] = append(m.held[w], x.claimed...)
	m.stats["claimed"] += len(got)
}

// ends returns the ends of lanes as text, in order.
func ends(all map[int32]core.Place) (lines []string) {
	for lane, at := range all {
		due := at.Due.UTC().String()
		if at.Due.Year() < 1 || at.ID == uuid.Nil { // nothing of the lane was taken
			due = "-infinity"
		}
		lines = append(lines, fmt.Sprint(lane, " ", due, " ", at.ID))
	}
	slices.Sort(lines)
	return lines
}

// settle ends or renews claims, in one statement of each kind, as a pass does.
func (m *tableModel) settle(w int) {
	s := m.stores[w]
	x := roundTrip{lease: tableLease}
	retryAt := m.now().Truncate(tableBin).Add(time.Duration(m.rnd.IntN(4)) * tableBin)
	kinds := []settling{acking, nacking, releasing, extending}
	for _, c := range m.someHeld(w, 1+m.rnd.IntN(6)) {
		f := settlement{kind: kinds[m.rnd.IntN(4)], claimed: c}
		if slices.ContainsFunc(x.settlements, func(o settlement) bool { return o.claimed.ID == c.ID }) {
			continue
		}
		switch f.kind {
		case nacking:
			why := errclass.Of(errors.New("again"))
			if m.rnd.IntN(4) == 0 {
				why = errclass.Of(outbox.Permanent(errors.New("never")))
			}
			f.why, f.retryAt = &why, retryAt
		case releasing:
			f.after = time.Duration(m.rnd.IntN(2)) * tableBin
		}
		x.settlements = append(x.settlements, f)
	}
	now := m.now()
	require.NoError(m.t, s.roundTrip(m.t.Context(), &x))
	for _, kind := range kinds { // in the order of the statements
		for i := range x.settlements {
			if f := &x.settlements[i]; f.kind == kind {
				m.note("worker %d: %s of %s, claim %d", w, f.kind, f.claimed.ID, f.claimed.ClaimNo)
				m.equal(m.settleModel(s.worker, f, now), f.outcome, "outcome")
				m.stats[f.outcome.String()]++
			}
		}
	}
	m.table.Sort()
}

// settleModel does in the model what f says, and returns its outcome.
func (m *tableModel) settleModel(worker uuid.UUID, f *settlement, now time.Time) Outcome {
	r, fence := m.byID[f.claimed.ID], simtest.Fence{Worker: worker, ClaimNo: int(f.claimed.ClaimNo)}
	changed := false
	switch f.kind {
	case acking:
		changed = m.table.Ack(r, fence)
	case nacking:
		changed = m.table.Nack(r, fence, now, f.why.Class == errclass.ClassRefused, f.retryAt)
	case releasing:
		changed = m.table.Release(r, fence, now, f.after)
	case extending:
		changed = m.table.Extend(r, fence, now, tableLease)
	}
	mine := r.ClaimNo == fence.ClaimNo && r.LockedBy == worker
	same := r.Attempts == f.claimed.Attempt
	switch {
	case changed:
		return Applied
	case !mine:
		return Lost
	case f.kind == acking && r.Final == "delivered", f.kind == releasing && r.Final == "" && !r.Leased() && !same && r.Attempts < f.claimed.Attempt:
		return Already
	case f.kind == nacking && same && (r.Final == "" && !r.Leased() || r.Final == "dead" && m.errorOf(r) == f.why.Text):
		return Already
	}
	return Lost
}

// errorOf returns why r is dead: the model does not know texts.
func (m *tableModel) errorOf(r *simtest.Row) string {
	return pgtest.Value[string](m.t, m.pool, "SELECT error FROM outbox.dead_letters WHERE id = $1", r.ID)
}

// pass lets time pass.
func (m *tableModel) pass() {
	d := time.Duration(1+m.rnd.IntN(8)) * tableBin
	pgtest.Execute(m.t, m.pool, `UPDATE outbox.queue SET next_attempt_at = next_attempt_at - $1::interval,
		locked_until = locked_until - $1::interval, updated_at = updated_at - $1::interval`, d)
	m.note("%s pass", d)
	m.adopt()
}

// sweep sweeps both.
func (m *tableModel) sweep(w int) {
	c := &claim{Claim: core.Claim{Topics: m.topics, Paused: m.paused()}, lease: tableLease, versions: m.versions(1 + m.rnd.IntN(2))}
	for _, h := range m.held[w] {
		if m.rnd.IntN(4) == 0 {
			c.InFlight = append(c.InFlight, h.ID)
		}
	}
	now := m.now()
	died, noted, err := m.stores[w].sweep(m.t.Context(), c, tableGrace, nil)
	require.NoError(m.t, err)
	m.note("worker %d sweeps: %d are dead, %d noted", w, died, noted)
	dead, found := m.table.Sweep(now, tableGrace, func(r *simtest.Row) bool {
		return r.Version <= int(c.versions.every) && !slices.Contains(c.InFlight, r.ID) &&
			!c.Paused.Event(r.Topic, uuid.NullUUID{UUID: r.Tenant, Valid: true})
	})
	m.equal([]int{len(dead), found}, []int{died, noted}, "swept")
	m.stats["swept"] += died
}

// replay replays a dead letter.
func (m *tableModel) replay() {
	for _, r := range m.table.All() {
		if r.Final != "dead" || m.rnd.IntN(4) > 0 {
			continue
		}
		no := pgtest.Value[int64](m.t, m.pool, "SELECT no FROM outbox.dead_letters WHERE id = $1", r.ID)
		row, err := m.stores[0].db.Each(m.pool).DeadLetterReplay(m.t.Context(), []int64{no})
		require.NoError(m.t, err)
		require.EqualValues(m.t, 1, row.Replayed)
		m.table.Replay(r, m.now())
		m.note("replay of %s", r.ID)
		m.stats["replayed"]++
		return
	}
}

// tableRow is what is compared of a row, except for times.
type tableRow struct {
	ID                     uuid.UUID
	Topic                  string
	Version                int
	Tenant                 uuid.UUID
	Lane                   int32
	Attempts, Max, ClaimNo int
	LockedBy               uuid.UUID
	Leased                 bool
	Final                  string
}

// compare compares all rows.
func (m *tableModel) compare() {
	rows, err := m.pool.Query(m.t.Context(), `
		SELECT id, topic, version, tenant_id, lane, attempts, max_attempts, claim_no, coalesce(locked_by, '00000000-0000-0000-0000-000000000000'),
			locked_until IS NOT NULL, '', next_attempt_at, coalesce(locked_until, next_attempt_at), updated_at FROM outbox.queue
		UNION ALL SELECT id, topic, 0, '00000000-0000-0000-0000-000000000000', 0, attempts, 0, claim_no, locked_by, false, 'delivered', 'epoch', 'epoch', 'epoch' FROM outbox.delivered
		UNION ALL SELECT id, topic, 0, '00000000-0000-0000-0000-000000000000', 0, attempts, 0, claim_no, coalesce(locked_by, '00000000-0000-0000-0000-000000000000'), false, 'dead', 'epoch', 'epoch', 'epoch' FROM outbox.dead_letters`)
	require.NoError(m.t, err)
	seen := 0
	var got tableRow
	var due, until, updated time.Time
	_, err = pgx.ForEachRow(rows, []any{
		&got.ID, &got.Topic, &got.Version, &got.Tenant, &got.Lane, &got.Attempts, &got.Max, &got.ClaimNo, &got.LockedBy, &got.Leased, &got.Final,
		&due, &until, &updated,
	}, func() error {
		seen++
		r := m.byID[got.ID]
		require.NotNil(m.t, r, "an event that the model does not have: %v, after\n%v", got, m)
		want := tableRow{r.ID, r.Topic, r.Version, r.Tenant, r.Lane, r.Attempts, r.Max, r.ClaimNo, r.LockedBy, r.Leased(), r.Final}
		if r.Final != "" {
			want.Version, want.Tenant, want.Lane, want.Max = 0, uuid.Nil, 0, 0
		}
		m.equal(want, got, "row")
		if r.Final == "" {
			m.near(r.Due, due, "due")
			if r.Leased() {
				m.near(r.LockedUntil, until, "leased until")
			}
		}
		return nil
	})
	require.NoError(m.t, err)
	m.equal(len(m.table.All()), seen, "number of events")
}

func (m *tableModel) near(want, got time.Time, what string) {
	m.t.Helper()
	require.WithinDuration(m.t, want, got, tableLease/2, "%s, after\n%v", what, m)
}

// adopt rounds the times of the tables, and makes them those of the model: it knows when a statement ran only nearly.
func (m *tableModel) adopt() {
	rows, err := m.pool.Query(m.t.Context(), `
		UPDATE outbox.queue SET next_attempt_at = date_bin('10 s', next_attempt_at, '2000-01-01 UTC'),
			locked_until = date_bin('10 s', locked_until, '2000-01-01 UTC'), updated_at = date_bin('10 s', updated_at, '2000-01-01 UTC')
		RETURNING id, next_attempt_at, coalesce(locked_until, '0001-01-01 UTC'), updated_at`)
	require.NoError(m.t, err)
	var id uuid.UUID
	var due, until, updated time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &due, &until, &updated}, func() error {
		r := m.byID[id]
		r.Due, r.Updated = due, updated
		if r.LockedUntil = until; until.Year() == 1 {
			r.LockedUntil = time.Time{}
		}
		return nil
	})
	require.NoError(m.t, err)
	m.table.Sort()
}

// play does something on both until it has done so often.
func (m *tableModel) play() {
	for range tableSteps {
		// Nothing falls due in the middle of a step.
		pgtest.Settles(m.t, m.pool, 1, "SELECT (extract(epoch FROM clock_timestamp())::numeric % 10 < 8)::integer")
		w := m.rnd.IntN(len(m.stores))
		switch n := m.rnd.IntN(100); {
		case n < 15:
			m.enqueue()
		case n < 50:
			m.claim(w)
		case n < 75:
			m.settle(w)
		case n < 85:
			m.pass()
		case n < 95:
			m.sweep(w)
		default:
			m.replay()
		}
		m.compare()
		m.adopt()
	}
}

// TestTablesAgainstTheModel: what simtest takes for the tables of the queue is what PostgreSQL has. The same random claims,
// results, renewals, sweeps, replays, pauses and versions give the same answers and rows; time passes by moving the times in
// the tables. Turns and limits are left to TestLimitsAgainstAModel. OUTBOXGEN_MODEL_SEEDS says how many schedules it
// plays, and OUTBOXGEN_MODEL_SEED plays one.
func TestTablesAgainstTheModel(t *testing.T) {
	t.Parallel()
	first, n := uint64(1), 2
	if text := os.Getenv("OUTBOXGEN_MODEL_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		first, n = seed, 1
	} else if text := os.Getenv("OUTBOXGEN_MODEL_SEEDS"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	for i := range n {
		seed := first + uint64(i)
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			m := newTableModel(t, seed)
			m.play()
			t.Logf("OUTBOXGEN_MODEL_SEED=%d: %v", seed, m.stats)
		})
	}
}
