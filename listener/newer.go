package listener

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/machine/heartbeat"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/listener/internal/core"
)

// findKnowing finds a process that lives and knows the version of e. There is none if that cannot be read.
func (s *shard) findKnowing(e *core.Entry) core.Event {
	ctx, cancel := s.l.limited(s.run.DBCtx)
	defer cancel()
	rows, err := s.l.db.Each(s.l.pool).ProcessKnowing(ctx, queries.ProcessKnowingParams{
		Listener: s.l.spec.Name, WorkerID: pgvalue.UUID(s.l.cfg.WorkerID), Alive: pgvalue.Interval(heartbeat.AliveFor),
		Topic: e.Namespace + "/" + e.Topic, Version: int32(e.Version),
	})
	if err != nil || len(rows) == 0 {
		return core.ProcessFound{}
	}
	return core.ProcessFound{Worker: uuid.NullUUID{UUID: rows[0].Bytes, Valid: rows[0].Valid}}
}

// tellNewer notes that a shard is given up because of an event of an unknown version.
func (l *Listener) tellNewer(cmd core.TellNewer) {
	l.newerAt.Store(time.Now().UnixNano())
	l.newerVersions.found(cmd.Entry, cmd.Entry.Of.Version, cmd.Handed)
}

// metNewer returns when this process has met an event of an unknown version; zero if it has not.
func (l *Listener) metNewer() time.Time {
	at := l.newerAt.Load()
	if at == 0 {
		return time.Time{}
	}
	return time.Unix(0, at)
}

// newerVersions logs each unknown version once.
type newerVersions struct {
	log  *slog.Logger
	mu   sync.Mutex
	said map[string]bool
}

func (s *newerVersions) found(e *core.Entry, known int, handed bool) {
	name := fmt.Sprint(e.Namespace, "/", e.Topic, " ", e.Version)
	s.mu.Lock()
	said := s.said[name]
	if s.said == nil {
		s.said = make(map[string]bool)
	}
	s.said[name] = true
	s.mu.Unlock()
	if !said {
		s.log.Warn(
			"events have a newer payload version than this process knows: their shards are left to processes that know it",
			"namespace", e.Namespace, "topic", e.Topic, "version", e.Version, "known", known, "handed_over", handed)
	}
}
