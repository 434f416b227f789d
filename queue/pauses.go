package queue

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/machine/heartbeat"
	"github.com/outboxgen/outboxgen/internal/postgres/doorbell"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/outbox"
)

// pauses is what operators have paused of the events of a namespace. It is not changed after newPauses. nil is nothing.
type pauses struct {
	all  bool     // everything
	keys []string // for SQL, sorted: topics, tenants, and topic/tenant; empty if all is set
}

var noPauses = &pauses{keys: []string{}}

func newPauses(rows []queries.PauseOfNamespaceRow) *pauses {
	p := &pauses{keys: make([]string, 0, len(rows))}
	for _, row := range rows {
		tenant := uuid.UUID(row.TenantID.Bytes)
		switch {
		case tenant == uuid.Nil && row.Topic == "":
			return &pauses{all: true, keys: []string{}}
		case tenant == uuid.Nil:
			p.keys = append(p.keys, row.Topic)
		case row.Topic == "":
			p.keys = append(p.keys, tenant.String())
		default:
			p.keys = append(p.keys, row.Topic+"/"+tenant.String())
		}
	}
	slices.Sort(p.keys)
	p.keys = slices.Compact(p.keys)
	return p
}

// scanPauses reads the rows of PauseOfNamespace.
func scanPauses(rows pgx.Rows) (*pauses, error) {
	var all []queries.PauseOfNamespaceRow
	var row queries.PauseOfNamespaceRow
	_, err := pgx.ForEachRow(rows, []any{&row.Topic, &row.TenantID}, func() error {
		all = append(all, row)
		return nil
	})
	return newPauses(all), err
}

func (p *pauses) has(key string) bool {
	_, is := slices.BinarySearch(p.keys, key)
	return is
}

// topic reports whether a whole topic is paused.
func (p *pauses) topic(name string) bool { return p.all || p.has(name) }

// event reports whether e is paused.
func (p *pauses) event(e *outbox.Event) bool {
	if p.all || len(p.keys) == 0 {
		return p.all
	}
	if p.has(e.Topic) || !e.TenantID.Valid {
		return p.has(e.Topic)
	}
	tenant := e.TenantID.UUID.String()
	return p.has(tenant) || p.has(e.Topic+"/"+tenant)
}

// every reports whether all of topics are paused. No topics mean all of the namespace, whatever they are.
func (p *pauses) every(topics []string) bool {
	if !p.any() || p.all || len(topics) == 0 {
		return p.any() && p.all
	}
	return !slices.ContainsFunc(topics, func(topic string) bool { return !p.has(topic) })
}

func (p *pauses) any() bool { return p != nil && (p.all || len(p.keys) > 0) }

// texts returns the keys as a parameter.
func (p *pauses) texts() []string {
	if p == nil {
		return noPauses.keys
	}
	return p.keys
}

func (p *pauses) equal(o *pauses) bool { return p.all == o.all && slices.Equal(p.keys, o.keys) }

// ended reports whether something that was paused in before is not paused any more.
func (p *pauses) ended(before *pauses) bool {
	if p.all {
		return false
	}
	return before.all || slices.ContainsFunc(before.keys, func(key string) bool { return !p.has(key) })
}

// readPauses reads what is paused now.
func (s *Store) readPauses(ctx context.Context) (*pauses, error) {
	rows, err := s.db.EachPlanned(s.pool).PauseOfNamespace(ctx, s.namespace)
	if err != nil {
		return nil, s.db.Wrap("read pauses in database "+schemadb.DatabaseName(s.pool.Config().ConnConfig), err) // the first statement of a drain
	}
	return newPauses(rows), nil
}

// readPauses makes the claims of d leave out what is paused now. changed reports that this is something else than before.
// After an error, which it reports, what was read last holds.
func (d *Dispatcher) readPauses(ctx context.Context) (changed bool, err error) {
	limited, cancel := context.WithTimeout(ctx, pauseTimeout)
	defer cancel()
	began := time.Now()
	p, err := d.store.readPauses(limited)
	if ctx.Err() == nil {
		d.rep.Statement("read what is paused", began, err)
	}
	if err != nil {
		return false, err
	}
	if changed = !p.equal(d.pauses.Load()); changed {
		d.pauses.Store(p)
	}
	return changed, nil
}

const (
	// shortestPauseCheck is the time between two readings of the pauses when PollInterval is shorter.
	shortestPauseCheck = 50 * time.Millisecond
	// pauseTimeout limits one reading.
	pauseTimeout = 5 * time.Second
)

// watchPauses reads what is paused once per PollInterval, and when the loop asks for it, until ctx ends. It tells the loop
// what has changed.
func (l *loop) watchPauses(ctx context.Context) {
	var pace doorbell.Pace
	for {
		timer := time.NewTimer(max(backoff.Within(l.d.cfg.PollInterval), shortestPauseCheck, pace.Pause()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-l.checkPauses:
			timer.Stop()
		case <-timer.C:
		}
		pace.Start()
		changed, _ := l.d.readPauses(ctx) // after an error, what was read last holds
		pace.Stop()
		if ctx.Err() != nil {
			return
		}
		if changed {
			l.pausesChanged.Emit()
		}
		l.d.signals.paused.Emit()
	}
}

// onPauses releases the queued events that are paused now, and claims again what is not paused any more.
func (l *loop) onPauses() {
	paused := l.d.pauses.Load()
	l.withdraw(func(t *task) bool { return paused.event(&t.Event) })
	l.requestLook() // a claim that is under way may pass over what it still takes for paused
}

// heart returns what keeps the row of d in the table processes.
func (d *Dispatcher) heart() *heartbeat.Heart {
	topics := make(map[string]heartbeat.Topic, len(d.topics))
	for _, topic := range d.topics {
		h := d.handlers[topic]
		topics[h.namespace+"/"+topic] = heartbeat.Topic{Version: h.version, MaxLag: h.maxLag.Seconds()}
	}
	return &heartbeat.Heart{
		DB: d.store.db, Pool: d.pool, Log: d.log, WorkerID: d.store.worker, Kind: heartbeat.Dispatcher, Name: d.store.namespace,
		Topics: topics, TenantIDs: d.cfg.TenantIDs, Resting: d.targets.Reasons, Changed: d.targets.Changed,
	}
}
