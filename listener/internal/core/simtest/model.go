package simtest

import (
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/listener/internal/core"
)

// Model is the model of the tables for a test that holds it against PostgreSQL. All events are of one topic.
type Model struct {
	t     tables
	topic *core.Topic
}

// Cursor is the row of a shard, without what PostgreSQL writes otherwise: its snapshots.
type Cursor struct {
	LeaseNo, LastSeq       int64
	LeaseID                uuid.UUID
	LeaseBy                uuid.UUID // zero for null
	Preferred              uuid.UUID
	Running, InBatch       bool
	OneByOne, RetryCount   int
	LeaseUntil, RetryAfter time.Time // zero for null
}

// Parked is a row of the table parked.
type Parked struct {
	No, Seq    int64
	Key        string
	Attempts   int
	Taken      int32
	RetryAfter time.Time // zero for null
}

// NewModel returns the tables of a listener with some shards, before all events. Leases last for so long, and after a crash so
// many events are handled one by one.
func NewModel(shards int, lease time.Duration, alone int) *Model {
	m := &Model{t: tables{ended: make(map[uuid.UUID]bool), lease: lease, alone: alone}, topic: &core.Topic{Version: 1}}
	for range shards {
		m.t.shards = append(m.t.shards, &cursor{lo: set{false}})
	}
	return m
}

// Insert adds the event after the latest, whose transaction is not committed.
func (m *Model) Insert(key string, bucket int) (seq int64) {
	r := &row{seq: int64(len(m.t.log) + 1), key: key, bucket: bucket, version: 1}
	m.t.log = append(m.t.log, r)
	return r.seq
}

// Commit commits the event.
func (m *Model) Commit(seq int64) { m.t.commit(m.t.rowOf(seq)) }

// KeyOf returns the key of an event.
func (m *Model) KeyOf(seq int64) string { return m.t.rowOf(seq).key }

// Take is ListenerTakeLease, with LogRead if it is asked for.
func (m *Model) Take(shard int, by uuid.UUID, p *core.Take, now time.Time) *core.Lease {
	lease := &core.Lease{ID: p.ID, BatchSize: p.BatchSize, ScanSize: p.ScanSize}
	if m.t.take(shard, by, p, now, lease); p.Read && lease.No > 0 {
		m.t.read(shard, lease, [2]*core.Topic{m.topic, m.topic})
	}
	return lease
}

// Window returns the events of the open window of a shard that its cursor has yet to pass, of all shards.
func (m *Model) Window(shard int) (seqs []int64) {
	c := m.t.shards[shard]
	for _, r := range m.t.window(c, c.hi) {
		seqs = append(seqs, r.seq)
	}
	return seqs
}

// Mine reports whether an event belongs to a shard.
func (m *Model) Mine(shard int, seq int64) bool {
	return m.t.rowOf(seq).bucket%len(m.t.shards) == shard
}

// End is ListenerAdvance with its companions.
func (m *Model) End(shard int, by uuid.UUID, a *core.End, now time.Time) bool {
	return m.t.advance(shard, by, a, now)
}

// TakeParked is ParkedTake.
func (m *Model) TakeParked(shard int, by uuid.UUID, cmd core.TakeParked, now time.Time) []*core.Entry {
	return m.t.takeParked(shard, &process{id: by, topics: [2]*core.Topic{m.topic, m.topic}}, cmd, now)
}

// Fill counts what waits for a shard.
func (m *Model) Fill(shard int, now time.Time) core.Filled { return m.t.fill(shard, now) }

// LeaseState is ListenerLeaseState.
func (m *Model) LeaseState(shard int) core.LeaseState { return m.t.leaseState(shard) }

// Wait is ListenerWait.
func (m *Model) Wait(shard int, by uuid.UUID, now time.Time) core.Wait {
	w, _ := m.t.wait(shard, by, now)
	return w
}

// Charge is ListenerCharge.
func (m *Model) Charge(shard int, by uuid.UUID, lease int64, seq int64, attempt int) bool {
	return m.t.charge(shard, by, lease, seq, attempt)
}

// Renew is ListenerRenew.
func (m *Model) Renew(shard int, by uuid.UUID, lease int64, now time.Time) bool {
	return m.t.renew(shard, by, lease, now)
}

// Cursors returns the rows of all shards.
func (m *Model) Cursors() (all []Cursor) {
	for _, c := range m.t.shards {
		all = append(all, Cursor{
			LeaseNo: c.leaseNo, LastSeq: c.lastSeq, LeaseID: c.leaseID, LeaseBy: c.leaseBy, Preferred: c.preferred, Running: c.running,
			InBatch: c.inBatch, OneByOne: c.oneByOne, RetryCount: c.retryCount, LeaseUntil: c.leaseUntil, RetryAfter: c.retryAfter,
		})
	}
	return all
}

// SetTimes sets the times of the row of a shard.
func (m *Model) SetTimes(shard int, leaseUntil, retryAfter time.Time) {
	m.t.shards[shard].leaseUntil, m.t.shards[shard].retryAfter = leaseUntil, retryAfter
}

// Parked returns the parked events.
func (m *Model) Parked() (all []Parked) {
	for _, p := range m.t.parked {
		all = append(all, Parked{p.no, p.seq, p.key, p.attempts, p.taken, p.retryAfter})
	}
	return all
}

// SetRetry sets when a parked event is due.
func (m *Model) SetRetry(no int64, at time.Time) {
	for _, p := range m.t.parked {
		if p.no == no {
			p.retryAfter = at
		}
	}
}

// Dead reports whether an event has a dead letter.
func (m *Model) Dead(seq int64) bool { return m.t.dead.has(seq) }
