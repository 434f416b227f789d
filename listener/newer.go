package listener

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/machine/heartbeat"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// A newer event has a payload version that is newer than the newest that this process knows. It is neither tried nor
// charged, and no event of the log behind it is handled: a lease ends before it, and the shard goes to another process.

// isNewer reports whether e is a newer event.
func (l *Listener) isNewer(e *entry) bool {
	s := l.of(e)
	return s != nil && e.Version > s.version
}

// stopAt ends the events of the lease with e, the first newer one.
func (lease *shardLease) stopAt(e *entry, place int) {
	e.newer, lease.newer = true, e
	lease.events = lease.events[:place+1]
}

// postpone makes e, a newer event that is parked, due again after a while.
func (l *Listener) postpone(lease *shardLease, e *entry) {
	e.newer = true
	e.retry = &pendingRetry{until: time.Now().Add(l.cfg.PollInterval)}
	if lease.newerParked == nil && e.head {
		lease.newerParked = e
	}
}

// giveUp gives the shard of a to a process that knows the version of the newer event at which its lease stopped, and
// notes that this process is not to take it again soon. It keeps the shard if only parked events are newer and no other
// process knows their version.
func (c *cursor) giveUp(ctx context.Context, a *advance) {
	lease := a.lease
	e := lease.newer
	if e != nil && e.status == statusParked { // behind another event of its key
		e = nil
	}
	atHead := e != nil
	if !atHead {
		e = lease.newerParked
	}
	if e == nil || !atHead && c.takeOverNow { // a Drain handles the rest of the log first
		return
	}
	to := c.knowing(ctx, e)
	if !atHead && !to.Valid {
		return
	}
	a.params.Release, a.params.HandTo = true, to
	c.newerUntil = time.Now().Add(c.l.cfg.PollInterval)
	c.wakesOthers = c.wakesOthers || c.newerSeq != e.seq
	c.newerSeq = e.seq
	c.l.newerAt.Store(time.Now().UnixNano())
	c.l.newerVersions.found(e, c.l.of(e).version, to.Valid)
}

// idle reports whether the lease stopped at a newer event before anything was handled.
func (lease *shardLease) idle() bool {
	if lease.newer == nil && lease.newerParked == nil {
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
	rows, err := c.l.db.Each(c.l.pool).ProcessKnowing(ctx, queries.ProcessKnowingParams{
		Listener: c.l.spec.Name, WorkerID: pgvalue.UUID(c.l.cfg.WorkerID), Alive: pgvalue.Interval(heartbeat.AliveFor),
		Topic: e.Namespace + "/" + e.Topic, Version: int32(e.Version),
	})
	if err != nil || len(rows) == 0 {
		return worker
	}
	return rows[0]
}

// newerFor is how long after it has met a newer event a process asks for no shards of others: it would give them up at
// the next such event.
const newerFor = 30 * time.Second

// metNewer reports whether this process has met a newer event of late.
func (l *Listener) metNewer() bool {
	at := l.newerAt.Load()
	return at != 0 && time.Since(time.Unix(0, at)) < newerFor
}

// newerVersions logs each unknown version once.
type newerVersions struct {
	log  *slog.Logger
	mu   sync.Mutex
	said map[string]bool
}

func (s *newerVersions) found(e *entry, known int, handed bool) {
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
