package listener

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/machine/shutdown"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/listener/internal/core"
	"github.com/outboxgen/outboxgen/listener/internal/core/simtest"
	"github.com/outboxgen/outboxgen/outbox"
)

const (
	tableSteps  = 200
	tableShards = 2
	tableLease  = time.Minute
	tableBin    = 10 * time.Second // all times in the tables are multiples of it, so that little depends on how long a step takes
)

// tableModel does the same at random on the real tables of a listener and on the model that simtest has of them, and
// compares the answers and the rows.
type tableModel struct {
	t       testing.TB
	rnd     *rand.Rand
	pool    *pgxpool.Pool
	workers []*listenerRun
	model   *simtest.Model
	open    []openEvents
	leases  [tableShards][]tableLeaseOf // that were taken, the latest last
	trace   []string
	stats   map[string]int
}

// openEvents are events of a transaction that is not committed.
type openEvents struct {
	tx   pgx.Tx
	seqs []int64
}

// tableLeaseOf is a lease that a worker has taken.
type tableLeaseOf struct {
	worker int
	lease  *core.Lease
	parked []*core.Entry
}

func newTableModel(t testing.TB, seed uint64) *tableModel {
	m := &tableModel{
		t: t, rnd: rand.New(rand.NewPCG(seed, 0)), pool: pgtest.Database(t), stats: make(map[string]int),
	}
	topic := outbox.NewTopic[struct{}](outbox.TopicSpec{Namespace: "jobs", Name: "one", Log: true})
	for range 3 {
		l, err := New(m.pool, Spec{Name: "reader", Shards: tableShards, ParkKeys: true}, Config{LeaseDuration: tableLease, BatchSize: 4},
			Handle(topic, t, func(context.Context, outbox.Delivery[struct{}]) error { return nil }))
		require.NoError(t, err)
		_, err = l.attach(t.Context())
		require.NoError(t, err)
		m.workers = append(m.workers, &listenerRun{l: l, Stages: shutdown.New(t.Context()), drained: new(Report)})
	}
	m.model = simtest.NewModel(tableShards, tableLease, int(m.workers[0].l.maxPerLease()))
	return m
}

func (m *tableModel) note(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf(format, args...))
}

// String returns the latest steps.
func (m *tableModel) String() string {
	text := ""
	for _, line := range m.trace[max(len(m.trace)-25, 0):] {
		text += line + "\n"
	}
	return text
}

func (m *tableModel) equal(want, got any, what string) {
	m.t.Helper()
	require.Equal(m.t, want, got, "%s: the model says the first, PostgreSQL the second, after\n%v", what, m)
}

func (m *tableModel) now() time.Time {
	return pgtest.Value[time.Time](m.t, m.pool, "SELECT clock_timestamp()")
}

func (m *tableModel) shell(w, shard int) *shard {
	s := m.workers[w].shard(shard, tableShards, 0)
	s.ctx = m.t.Context()
	return s
}

func (m *tableModel) id(w int) uuid.UUID { return m.workers[w].l.cfg.WorkerID }

// enqueue enqueues events in a transaction that stays open.
func (m *tableModel) enqueue() {
	e := openEvents{tx: pgtest.Begin(m.t, m.pool, pgx.TxOptions{})}
	for range 1 + m.rnd.IntN(4) {
		var seq int64
		var bucket int
		key := fmt.Sprint("k", m.rnd.IntN(5))
		require.NoError(m.t, e.tx.QueryRow(m.t.Context(), `
			INSERT INTO outbox.log (namespace, topic, payload, partition_key, bucket)
			VALUES ('jobs', 'one', '{}', $1, outbox.bucket($1, gen_random_uuid())) RETURNING seq, bucket`, key).Scan(&seq, &bucket))
		m.equal(m.model.Insert(key, bucket), seq, "seq")
		e.seqs = append(e.seqs, seq)
	}
	m.open = append(m.open, e)
	m.note("events %v, not committed", e.seqs)
}

// finish commits a transaction, or rolls it back.
func (m *tableModel) finish() {
	if len(m.open) == 0 {
		return
	}
	i := m.rnd.IntN(len(m.open))
	e := m.open[i]
	m.open = slices.Delete(m.open, i, i+1)
	if m.rnd.IntN(6) == 0 {
		require.NoError(m.t, e.tx.Rollback(m.t.Context()))
		m.note("events %v are rolled back", e.seqs)
		return
	}
	require.NoError(m.t, e.tx.Commit(m.t.Context()))
	for _, seq := range e.seqs {
		m.model.Commit(seq)
	}
	m.note("events %v are committed", e.seqs)
}

// latest returns a lease of a shard, mostly the latest; nil if there was none.
func (m *tableModel) latest(shard int) *tableLeaseOf {
	all := m.leases[shard]
	if len(all) == 0 {
		return nil
	}
	if m.rnd.IntN(5) == 0 {
		return &all[m.rnd.IntN(len(all))]
	}
	return &all[len(all)-1]
}

// take takes a lease, or asks for one again.
func (m *tableModel) take(w, shard int) {
	c := m.model.Cursors()[shard]
	p := &core.Take{
		ID: uuid.New(), AfterNo: c.LeaseNo, TakeOver: m.rnd.IntN(2) == 0, BatchSize: 1 + m.rnd.IntN(4), ScanSize: 2 + m.rnd.IntN(10), Read: true,
	}
	switch m.rnd.IntN(8) {
	case 0:
		p.AfterNo--
	case 1:
		if c.LeaseID != uuid.Nil {
			p.ID = c.LeaseID
		}
	case 2:
		p.Previous = c.LeaseID
	}
	now := m.now()
	filled := m.shell(w, shard).fill()
	require.IsType(m.t, core.Filled{}, filled)
	looked := filled.(core.Filled)
	looked.Age = 0
	m.equal(m.model.Fill(shard, now), looked, "what waits")
	answer := m.shell(w, shard).roundTrip(core.RoundTrip{Take: p})
	require.IsType(m.t, core.RoundTripDone{}, answer)
	got, want := answer.(core.RoundTripDone).Lease, m.model.Take(shard, m.id(w), p, now)
	m.note("worker %d takes shard %d after %d (take over %v): lease %d", w, shard, p.AfterNo, p.TakeOver, got.No)
	m.equal(leaseText(want), leaseText(got), "lease")
	if got.No > 0 {
		m.leases[shard] = append(m.leases[shard], tableLeaseOf{worker: w, lease: got})
		m.stats["taken"]++
	}
}

func leaseText(l *core.Lease) string {
	if l.No == 0 { // what was read belongs to a lease that the worker has had before
		return "none"
	}
	text := fmt.Sprint("no ", l.No, " shards ", l.Shards, " last ", l.LastSeq, " retries ", l.RetryCount, " alone ", l.OneByOne, " parked ",
		l.ParkedDue, " ahead ", l.AheadSeqs, l.AheadAttempts, " scanned ", l.Scanned, " to ", l.ScannedTo)
	return text + entriesText(l.Events)
}

func entriesText(all []*core.Entry) (text string) {
	for _, e := range all {
		text += fmt.Sprint("; ", e.Seq, " ", e.Key, " ", e.ParkedBefore, " ", e.ParkedNo, " ", e.Used, " ", e.Taken)
	}
	return text
}

// takeParked reads the parked events of a lease.
func (m *tableModel) takeParked(shard int) {
	o := m.latest(shard)
	if o == nil {
		return
	}
	cmd := core.TakeParked{Lease: o.lease, Keys: 1 + m.rnd.IntN(3), Events: 1 + m.rnd.IntN(3)}
	now := m.now()
	answer := m.shell(o.worker, shard).takeParked(cmd)
	require.IsType(m.t, core.ParkedTaken{}, answer)
	want, got := m.model.TakeParked(shard, m.id(o.worker), cmd, now), answer.(core.ParkedTaken).Events
	m.note("worker %d takes the parked events of lease %d of shard %d: %d", o.worker, o.lease.No, shard, len(got))
	m.equal(entriesText(want), entriesText(got), "parked events")
	o.parked = got
	m.stats["parked taken"] += len(got)
}

// end ends a lease, whose events are done, dead or parked.
func (m *tableModel) end(shard int) {
	o := m.latest(shard)
	if o == nil {
		return
	}
	a := &core.End{AheadSeqs: []int64{}, AheadAttempts: []int32{}, Lease: o.lease, LastSeq: m.model.Cursors()[shard].LastSeq, Release: m.rnd.IntN(4) == 0}
	if a.Release && m.rnd.IntN(2) == 0 {
		a.HandTo = uuid.NullUUID{UUID: m.id(m.rnd.IntN(3)), Valid: true}
	}
	m.endParked(o, a)
	window := m.model.Window(shard)
	pass := m.rnd.IntN(len(window) + 1)
	parked := make(map[string]bool)
	for _, p := range m.model.Parked() {
		parked[p.Key] = true
	}
	for _, seq := range window[:pass] {
		a.LastSeq = seq
		if m.model.Mine(shard, seq) {
			m.endEvent(a, seq, parked)
		}
	}
	switch a.Closes = pass == len(window); {
	case !a.Closes && m.rnd.IntN(3) == 0:
		a.RetryCount, a.Delayed, a.Delay = int32(m.rnd.IntN(3)), true, time.Duration(1+m.rnd.IntN(3))*tableBin
	case m.rnd.IntN(8) == 0:
		a.LetLeaseExpire, a.Release, a.HandTo = true, false, uuid.NullUUID{}
	}
	a.Handled = int32(m.rnd.IntN(3))
	now := m.now()
	answer := m.shell(o.worker, shard).roundTrip(core.RoundTrip{End: a})
	require.IsType(m.t, core.RoundTripDone{}, answer)
	got := answer.(core.RoundTripDone).Ours
	m.note("worker %d ends lease %d of shard %d at event %d of %v, closes %v: %v", o.worker, o.lease.No, shard, a.LastSeq, window, a.Closes, got)
	m.equal(m.model.End(shard, m.id(o.worker), a, now), got, "moved")
	m.stats[fmt.Sprint("ended ", got)]++
}

// endEvent lets an event of the log be done, dead or parked.
func (m *tableModel) endEvent(a *core.End, seq int64, parked map[string]bool) {
	key := m.model.KeyOf(seq)
	n := m.rnd.IntN(5)
	switch {
	case parked[key] || n < 2:
		delay := int64(-1)
		if !parked[key] {
			delay = (time.Duration(m.rnd.IntN(3)) * tableBin).Microseconds()
			a.Heads = append(a.Heads, seq)
		}
		parked[key] = true
		a.Parking.Seqs, a.Parking.Keys = append(a.Parking.Seqs, seq), append(a.Parking.Keys, key)
		a.Parking.Attempts, a.Parking.DelaysUs = append(a.Parking.Attempts, int32(m.rnd.IntN(2))), append(a.Parking.DelaysUs, delay)
		a.Parking.Errors = append(a.Parking.Errors, "parked")
	case n == 2:
		a.Dead.Seqs, a.Dead.Keys = append(a.Dead.Seqs, seq), append(a.Dead.Keys, key)
		a.Dead.Attempts, a.Dead.Errors = append(a.Dead.Attempts, 1), append(a.Dead.Errors, "dead")
	}
}

// endParked lets the first parked events of each key of a lease be done, dead or tried again.
func (m *tableModel) endParked(o *tableLeaseOf, a *core.End) {
	p, stopped := &core.Settle{}, make(map[string]bool)
	for _, e := range o.parked {
		if stopped[e.Key] {
			continue
		}
		switch m.rnd.IntN(4) {
		case 0:
			p.Dead, p.DeadAttempts, p.DeadErrors = append(p.Dead, e.ParkedNo), append(p.DeadAttempts, 3), append(p.DeadErrors, "dead")
		case 1:
			stopped[e.Key] = true
			p.Failed, p.FailedAttempts = append(p.Failed, e.ParkedNo), append(p.FailedAttempts, int32(m.rnd.IntN(3)))
			p.FailedTaken, p.FailedErrors = append(p.FailedTaken, int32(m.rnd.IntN(2))), append(p.FailedErrors, "failed")
			p.FailedDelaysUs = append(p.FailedDelaysUs, (time.Duration(m.rnd.IntN(3)) * tableBin).Microseconds())
			continue
		default:
			p.Done = append(p.Done, e.ParkedNo)
		}
		if !slices.Contains(a.Promote, e.Key) {
			a.Promote = append(a.Promote, e.Key)
		}
	}
	if a.Taken = int32(m.rnd.IntN(2)); len(o.parked) > 0 {
		a.Settle = p
	}
	o.parked = nil
}

// ask asks what a process asks between leases, and renews or charges.
func (m *tableModel) ask(w, shard int) {
	now, s := m.now(), m.shell(w, shard)
	checked, is := s.check().(core.Checked)
	require.True(m.t, is)
	want := m.model.Wait(shard, m.id(w), now)
	m.equal(want.In < 0, checked.Wait.In < 0, "nothing falls due")
	require.InDelta(m.t, want.In.Seconds(), checked.Wait.In.Seconds(), tableBin.Seconds(), "wait, after\n%v", m)
	want.In, checked.Wait.In = 0, 0
	m.equal(want, checked.Wait, "wait")
	m.equal(m.model.LeaseState(shard), s.askLease(), "state of the lease")
	o := m.latest(shard)
	if o == nil {
		return
	}
	by := m.shell(o.worker, shard)
	if m.rnd.IntN(2) == 0 {
		n, err := by.extend(m.t.Context(), o.lease)
		require.NoError(m.t, err)
		m.equal(m.model.Renew(shard, m.id(o.worker), o.lease.No, now), n > 0, "renewed")
		m.note("worker %d renews lease %d of shard %d: %d", o.worker, o.lease.No, shard, n)
	} else if len(o.lease.Events) > 0 && o.lease.Events[0].Seq > m.model.Cursors()[shard].LastSeq {
		e := o.lease.Events[0]
		e.Attempt = 1 + m.rnd.IntN(3)
		charged, is := by.charge(core.Charge{Lease: o.lease, Entry: e}).(core.Charged)
		require.True(m.t, is)
		m.equal(m.model.Charge(shard, m.id(o.worker), o.lease.No, e.Seq, e.Attempt), charged.Ours, "charged")
		m.note("worker %d charges event %d: %v", o.worker, e.Seq, charged.Ours)
	}
}

// pass lets time pass.
func (m *tableModel) pass() {
	d := time.Duration(1+m.rnd.IntN(8)) * tableBin
	pgtest.Execute(m.t, m.pool, "UPDATE outbox.listeners SET lease_until = lease_until - $1::interval, retry_after = retry_after - $1::interval", d)
	pgtest.Execute(m.t, m.pool, "UPDATE outbox.parked SET retry_after = retry_after - $1::interval", d)
	m.note("%s pass", d)
}
