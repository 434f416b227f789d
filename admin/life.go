package admin

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/outbox"
)

// EventLife is an event, what has become of it everywhere in this database, and what it has caused.
type EventLife struct {
	// Status is "" for an event of the log that was pruned, and of which a listener has a copy.
	EventStatus
	Entity outbox.Entity
	// Causation is the header causation_id, the id of the event whose handler has enqueued this one, and Correlation the
	// header correlation_id; "" for an event that was not enqueued by a handler.
	Causation, Correlation string
	// Listeners says of an event of a log topic where it is at each listener, as in EventDetail.
	Listeners []EventAtListener
	// Consumers says what consumer groups of this database have done with it.
	Consumers []EventAtConsumer
	// Acts are those of operators that have touched it, or may have, in their order.
	Acts []EventAct
	// Caused are the events that its handlers have enqueued, in the order of their enqueue.
	Caused []*EventLife
}

// chain returns the id that all events of the chain have.
func (e *EventLife) chain() string { return cmp.Or(e.Correlation, e.ID.String()) }

// EventAtConsumer is what a consumer group has done with an event.
type EventAtConsumer struct {
	Consumer string         `json:"consumer"`
	Status   ConsumerResult `json:"status"`
	At       time.Time      `json:"at"` // when it was handled, or has failed last
	// Of a parked or dead message: how often it was tried, and its latest error. NextAttemptAt is zero if it is dead, or if
	// it waits behind another message of its key.
	Attempts      int       `json:"attempts,omitempty"`
	NextAttemptAt time.Time `json:"next_attempt_at,omitzero"`
	LastError     string    `json:"last_error,omitempty"`
}

// ConsumerResult is what a consumer group has done with an event.
type ConsumerResult string

// The results.
const (
	ConsumerHandled     ConsumerResult = "handled"     // its effect is committed, or it was stale and skipped
	ConsumerQuarantined ConsumerResult = "quarantined" // it was stale, and a copy is kept
	ConsumerParked      ConsumerResult = "parked"      // it is tried again, or waits behind one of its key that is
	ConsumerDead        ConsumerResult = "dead"        // it was given up
)

// EntityVersion is the latest version of an entity that a consumer group of this database has applied.
type EntityVersion struct {
	Consumer string        `json:"consumer"`
	Source   string        `json:"source,omitempty"`
	TenantID uuid.NullUUID `json:"tenant_id,omitzero"`
	Version  int64         `json:"version"`
	EventID  uuid.UUID     `json:"event_id"`
	At       time.Time     `json:"at"`
}

// LifePage is a part of the life of a thing.
type LifePage struct {
	// Events are those that the filter selects, in the order of their enqueue. An event that one of them has caused is in its
	// Caused.
	Events []*EventLife `json:"events"`
	// Versions are those that consumers have of Filter.Entity.
	Versions []EntityVersion `json:"entity_versions,omitempty"`
	// More says that the events have caused others that are not in Caused: a page has 1,000 events at most.
	More bool `json:"more,omitempty"`
	// Next is the Page.After of the next page; "" means that this is the last one.
	Next string `json:"next,omitempty"`
}

const (
	maxLife  = 1000 // events of a page, with what they have caused
	maxChain = 500  // of them that one chain has
)

// Life returns what happened to a thing: the events that f selects, in the order of their enqueue, with where they are at
// listeners and consumers, the acts of operators, and the events that their handlers have enqueued in turn. f usually has
// an Entity, a Correlation, a Causation or a Key. An event knows its cause by its headers, so one whose cause was pruned, or that is
// in another database, stands on its own.
func (a *Admin) Life(ctx context.Context, f Filter, page Page) (LifePage, error) {
	const what = "list life"
	selected, seqs, err := a.browse(ctx, what, f, page)
	if err != nil {
		return LifePage{}, err
	}
	l := life{events: make(map[uuid.UUID]*EventLife), seqs: seqs, page: LifePage{Events: []*EventLife{}, Next: selected.Next}}
	var places []place
	for _, e := range selected.Events {
		places = append(places, place{e.ID, pgvalue.Time(e.CreatedAt), seqs[e.ID]})
	}
	err = a.db.InSnapshot(ctx, a.pool, func(q *queries.Queries) error {
		if err := l.read(ctx, q, places); err != nil {
			return err
		}
		roots := l.sorted()
		if f.Correlation == "" { // with it, they are selected already
			if err := l.follow(ctx, q, roots, f.Entity); err != nil {
				return err
			}
		}
		l.join(roots)
		return l.around(ctx, q, f.Entity)
	})
	if err != nil {
		return LifePage{}, a.db.Wrap(what, err)
	}
	return l.page, nil
}

// life collects the events of a page.
type life struct {
	events map[uuid.UUID]*EventLife
	seqs   map[uuid.UUID]int64
	heard  []queries.HeardByIDRow
	page   LifePage
}

// read adds events that are not there yet.
func (l *life) read(ctx context.Context, q *queries.Queries, places []place) error {
	places = slices.DeleteFunc(places, func(p place) bool { return l.events[p.id] != nil })
	if len(places) == 0 {
		return nil
	}
	entries, err := entriesOf(ctx, q, places)
	if err != nil {
		return err
	}
	facts, err := factsOf(ctx, q, places)
	if err != nil {
		return err
	}
	for _, p := range places {
		of := entries[p.id]
		if len(of) == 0 || l.events[p.id] != nil { // it was deleted, or is twice among places
			continue
		}
		e := &EventLife{EventStatus: eventStatus(of[0])}
		if e.Listener != "" { // the log has pruned it
			e.forget()
		}
		if f := facts[p.id]; f.EntityType != "" {
			e.Entity = outbox.Entity{Type: f.EntityType, ID: f.EntityID, Version: f.EntityVersion}
		}
		e.Causation, e.Correlation = facts[p.id].Causation, facts[p.id].Correlation
		l.events[p.id] = e
		if p.seq > 0 {
			l.seqs[p.id] = p.seq
		}
		for _, r := range of {
			if r.Listener != "" {
				l.heard = append(l.heard, queries.HeardByIDRow(r))
			}
		}
	}
	return nil
}

// forget makes of the copy that a listener has the event itself, which the log has pruned.
func (s *EventStatus) forget() {
	s.Listener, s.Status, s.Attempts, s.LastError = "", "", 0, ""
	s.FinalizedAt, s.NextAttemptAt = time.Time{}, time.Time{}
}

// sorted returns all events in the order of their enqueue.
func (l *life) sorted() []*EventLife {
	all := make([]*EventLife, 0, len(l.events))
	for _, e := range l.events {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *EventLife) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), bytes.Compare(a.ID[:], b.ID[:]))
	})
	return all
}

// follow adds what events have caused. Other events of the entity that was asked for are on pages of their own.
func (l *life) follow(ctx context.Context, q *queries.Queries, roots []*EventLife, entity outbox.Entity) error {
	var correlations []string
	for _, e := range roots {
		if c := e.chain(); !slices.Contains(correlations, c) {
			correlations = append(correlations, c)
		}
	}
	if len(roots) == 0 {
		return nil
	}
	first := beginning
	if at := roots[0].CreatedAt; !at.IsZero() {
		first.at = pgvalue.Time(at)
	}
	places, err := chains(ctx, q, correlations, first, maxChain, maxLife)
	if err != nil {
		return err
	}
	selected := make(map[uuid.UUID]bool, len(roots))
	for _, e := range roots {
		selected[e.ID] = true
	}
	if err := l.read(ctx, q, places); err != nil {
		return err
	}
	l.page.More = len(places) == maxLife
	ofChain := make(map[string]int, len(correlations))
	for _, p := range places {
		if e := l.events[p.id]; e != nil {
			ofChain[e.Correlation]++
			l.page.More = l.page.More || ofChain[e.Correlation] == maxChain
		}
	}
	known := maps.Clone(selected)
	for _, e := range l.sorted() {
		other := l.page.Next != "" && e.Entity.Type == entity.Type && e.Entity.ID == entity.ID
		switch {
		case selected[e.ID]:
		case known[causeOf(e.Causation)] && !other:
			known[e.ID] = true
		default:
			delete(l.events, e.ID)
		}
	}
	return nil
}

// join puts each event below its cause, if that is there and was enqueued before it.
func (l *life) join(roots []*EventLife) {
	shown := make(map[uuid.UUID]bool, len(l.events))
	for _, e := range l.sorted() {
		if by := causeOf(e.Causation); shown[by] {
			l.events[by].Caused = append(l.events[by].Caused, e)
		} else if slices.Contains(roots, e) {
			l.page.Events = append(l.page.Events, e)
		} else {
			delete(l.events, e.ID)
			continue
		}
		shown[e.ID] = true
	}
}

// around adds what listeners, consumers and operators have done with the events.
func (l *life) around(ctx context.Context, q *queries.Queries, entity outbox.Entity) error {
	all := l.sorted()
	if len(l.seqs)+len(l.heard) > 0 {
		if err := l.atListeners(ctx, q, all); err != nil {
			return err
		}
	}
	if err := readAround(ctx, q, all); err != nil || entity.Type == "" {
		return err
	}
	tenants := []pgtype.UUID{pgvalue.UUID(uuid.Nil)}
	for _, e := range all {
		if id := pgvalue.UUID(e.TenantID.UUID); e.TenantID.Valid && !slices.Contains(tenants, id) {
			tenants = append(tenants, id)
		}
	}
	rows, err := q.EntityVersionList(ctx, queries.EntityVersionListParams{
		Tenants: tenants, EntityType: entity.Type, EntityID: entity.ID,
	})
	for _, r := range rows {
		l.page.Versions = append(l.page.Versions, EntityVersion{
			Consumer: r.ConsumerGroup, Source: r.Source, Version: r.Version, EventID: r.EventID.Bytes, At: r.UpdatedAt.Time.UTC(),
			TenantID: uuid.NullUUID{UUID: r.TenantID.Bytes, Valid: r.TenantID.Bytes != uuid.Nil},
		})
	}
	return err
}

// atListeners says where the events of the log are at each listener.
func (l *life) atListeners(ctx context.Context, q *queries.Queries, all []*EventLife) error {
	seqs := make([]int64, 0, len(l.seqs))
	for id, seq := range l.seqs {
		if l.events[id] != nil {
			seqs = append(seqs, seq)
		}
	}
	cursors, err := q.LogStanding(ctx, seqs)
	if err != nil {
		return err
	}
	processes, err := aliveProcesses(ctx, q)
	if err != nil {
		return err
	}
	bySeq, heard := make(map[int64][]queries.LogStandingRow), make(map[uuid.UUID][]queries.HeardByIDRow)
	for _, c := range cursors {
		bySeq[c.Seq] = append(bySeq[c.Seq], c)
	}
	for _, r := range l.heard {
		heard[r.ID.Bytes] = append(heard[r.ID.Bytes], r)
	}
	var ids []pgtype.UUID
	for _, e := range all {
		seq := l.seqs[e.ID]
		if seq == 0 && heard[e.ID] == nil {
			continue
		}
		ids = append(ids, pgvalue.UUID(e.ID))
		e.Listeners = standingOf(bySeq[seq], processes, e.Name(), heard[e.ID])
	}
	failures, err := listenerFailures(ctx, q, ids)
	for _, e := range all {
		for i, at := range e.Listeners {
			e.Listeners[i].Failures = failures[atListener{e.ID, at.Listener}]
		}
	}
	return err
}

// readAround adds what consumers and operators have done with events.
func readAround(ctx context.Context, q *queries.Queries, events []*EventLife) error {
	if len(events) == 0 {
		return nil
	}
	byID := make(map[uuid.UUID][]*EventLife, len(events))
	for _, e := range events {
		byID[e.ID] = append(byID[e.ID], e)
		if e.DedupeKey != "" { // a group may record events by their keys
			key := inbox.KeyID(e.Namespace+"."+e.Topic, e.DedupeKey)
			byID[key] = append(byID[key], e)
		}
	}
	ids := slices.SortedFunc(maps.Keys(byID), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	rows, err := q.InboxOfEvents(ctx, pgvalue.UUIDs(ids))
	if err != nil {
		return err
	}
	for _, r := range rows {
		c := EventAtConsumer{
			Consumer: r.ConsumerGroup, Status: ConsumerResult(r.Status), At: r.At.Time.UTC(), Attempts: int(r.Attempts),
			LastError: r.Error,
		}
		if c.Status == ConsumerParked && r.NextAttemptAt.InfinityModifier == pgtype.Finite {
			c.NextAttemptAt = r.NextAttemptAt.Time.UTC()
		}
		for _, e := range byID[r.ID.Bytes] {
			e.Consumers = append(e.Consumers, c)
		}
	}
	return readActs(ctx, q, events)
}

// lifeOfDetail returns what readAround needs of an event.
func lifeOfDetail(d *EventDetail) *EventLife {
	return &EventLife{EventStatus: d.EventStatus, Entity: d.Entity, Listeners: d.Listeners}
}
