package listener

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/dbsqlc"
	"github.com/outboxgen/outboxgen/internal/pgvalue"
	"github.com/outboxgen/outboxgen/internal/process"
)

// A strange event has a payload version that is newer than the newest that this process knows. It is neither tried nor
// charged, and no event of the log behind it is handled: a lease ends before it, and the shard goes to another process.

// isStrange reports whether e is a strange event.
func (l *Listener) isStrange(e *entry) bool {
	h, there := l.handlers[e.Namespace+"/"+e.Topic]
	return there && e.Version > h.version
}

// stopAt ends the events of the lease with e, the first strange one.
func (lease *shardLease) stopAt(e *entry, place int) {
	e.strange, lease.strange = true, e
	lease.events = lease.events[:place+1]
}

// postpone makes e, a strange event that is parked, due again after a while.
func (l *Listener) postpone(lease *shardLease, e *entry) {
	e.strange = true
	e.retry = &pendingRetry{until: time.Now().Add(l.cfg.PollInterval)}
	if lease.strangeParked == nil && e.head {
		lease.strangeParked = e
	}
}

// giveUp gives the shard of a to a process that knows the version of the strange event at which its lease stopped, and
// notes that this process is not to take it again soon. It keeps the shard if only parked events are strange and no other
// process knows their version.
func (c *cursor) giveUp(ctx context.Context, a *advance) {
	lease := a.lease
	e := lease.strange
	if e != nil && e.status == statusParked { // behind another event of its key
		e = nil
	}
	atHead := e != nil
	if !atHead {
		e = lease.strangeParked
	}
	if e == nil || !atHead && c.takeOverNow { // a Drain handles the rest of the log first
		return
	}
	to := c.knowing(ctx, e)
	if !atHead && !to.Valid {
		return
	}
	a.params.Release, a.params.HandTo = true, to
	c.strangeUntil = time.Now().Add(c.l.cfg.PollInterval)
	c.wakesOthers = c.wakesOthers || c.strangeSeq != e.seq
	c.strangeSeq = e.seq
	c.l.strangeAt.Store(time.Now().UnixNano())
	c.l.strange.found(e, c.l.handlers[e.Namespace+"/"+e.Topic].version, to.Valid)
}

// idle reports whether the lease stopped at a strange event before anything was handled.
func (lease *shardLease) idle() bool {
	if lease.strange == nil && lease.strangeParked == nil {
		return false
	}
	for _, e := range lease.entries() {
		if e.started || e.status != statusWaiting && !e.parkedBefore {
			return false
		}
	}
	return true
}

// knowing returns a process that lives and knows the version of e; null if there is none, or if that cannot be read.
func (c *cursor) knowing(ctx context.Context, e *entry) (worker pgtype.UUID) {
	ctx, cancel := c.l.limited(ctx)
	defer cancel()
	rows, err := c.l.db.Each(c.l.pool).ProcessKnowing(ctx, dbsqlc.ProcessKnowingParams{
		Listener: c.l.spec.Name, WorkerID: pgvalue.UUID(c.l.cfg.WorkerID), Alive: pgvalue.Interval(process.AliveFor),
		Topic: e.Namespace + "/" + e.Topic, Version: int32(e.Version),
	})
	if err != nil || len(rows) == 0 {
		return worker
	}
	return rows[0]
}

// strangeFor is how long after it has met a strange event a process asks for no shards of others: it would give them up at
// the next such event.
const strangeFor = 30 * time.Second

// metStrange reports whether this process has met a strange event of late.
func (l *Listener) metStrange() bool {
	at := l.strangeAt.Load()
	return at != 0 && time.Since(time.Unix(0, at)) < strangeFor
}

// strangers logs each unknown version once.
type strangers struct {
	log  *slog.Logger
	mu   sync.Mutex
	said map[string]bool
}

func (s *strangers) found(e *entry, known int, handed bool) {
	name := fmt.Sprint(e.Namespace, "/", e.Topic, " ", e.Version)
	s.mu.Lock()
	said := s.said[name]
	if s.said == nil {
		s.said = make(map[string]bool)
	}
	s.said[name] = true
	s.mu.Unlock()
	if !said {
		s.log.Warn("events have a newer payload version than this process knows: their shards are left to processes that know it",
			"namespace", e.Namespace, "topic", e.Topic, "version", e.Version, "known", known, "handed_over", handed)
	}
}
