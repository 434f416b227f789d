package admin

import (
	"cmp"
	"context"
	"math"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/outbox"
)

// place is an event where an index has led to it.
type place struct {
	id  uuid.UUID
	at  pgtype.Timestamptz // the enqueue
	seq int64              // in the log; 0 in the queue
}

// list lists places behind one of them.
type list func(ctx context.Context, q *queries.Queries, after place, limit int32) ([]place, error)

// beginning is before each place.
var beginning = place{at: pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}}

func (b *browser) ofEntity(ctx context.Context, q *queries.Queries, after place, limit int32) ([]place, error) {
	rows, err := q.FindByEntity(ctx, queries.FindByEntityParams{
		EntityType: b.f.Entity.Type, EntityID: b.f.Entity.ID, AfterAt: after.at, AfterID: pgvalue.UUID(after.id),
		EventLimit: limit,
	})
	return placesOf(rows), err
}

func (b *browser) ofChain(ctx context.Context, q *queries.Queries, after place, limit int32) ([]place, error) {
	return chains(ctx, q, []string{b.chain}, after, limit, limit)
}

// caused is the section of what the filter's event has caused: of its chain, entries keeps that.
func (b *browser) caused(ctx context.Context, at *bookmark) (over bool, err error) {
	p, err := placeOf(ctx, b.q, b.f.Causation)
	if err != nil {
		return false, err
	}
	facts, err := factsOf(ctx, b.q, []place{p})
	if err != nil {
		return false, err
	}
	b.chain = cmp.Or(facts[p.id].Correlation, p.id.String())
	return b.inOrder(b.ofChain)(ctx, at)
}

// placeOf returns where an event is: in the log, if it is not one of a queue topic and is found there.
func placeOf(ctx context.Context, q *queries.Queries, id uuid.UUID) (place, error) {
	p := place{id: id}
	queued, err := q.EventsByID(ctx, queries.EventsByIDParams{Ids: []pgtype.UUID{pgvalue.UUID(id)}})
	if err == nil && len(queued) == 0 {
		p.seq, err = findAround(ctx, q, id, findClose, findNear)
	}
	return p, err
}

// chains lists the events that have one of correlations, up to each of every one and up to all together.
func chains(
	ctx context.Context, q *queries.Queries, correlations []string, after place, each, all int32,
) ([]place, error) {
	rows, err := q.FindByCorrelation(ctx, queries.FindByCorrelationParams{
		Correlations: correlations, AfterAt: after.at, AfterID: pgvalue.UUID(after.id), EventLimit: each, AllLimit: all,
	})
	return placesOf(rows), err
}

func placesOf[R queries.FindByEntityRow | queries.FindByCorrelationRow](rows []R) []place {
	places := make([]place, len(rows))
	for i, r := range rows {
		row := queries.FindByEntityRow(r)
		places[i] = place{row.ID.Bytes, row.CreatedAt, row.Seq}
	}
	return places
}

// inOrder returns the section of what next lists. The bookmark is behind an event, and has in No how many entries of the
// one that follows are on an earlier page.
func (b *browser) inOrder(next list) section {
	return func(ctx context.Context, at *bookmark) (over bool, err error) {
		for {
			after := beginning
			if !at.At.IsZero() {
				after = place{id: at.ID, at: pgvalue.Time(at.At)}
			}
			limit := int32(b.limit - len(b.found) + 1)
			if b.compares() {
				limit = max(limit, findPiece)
			}
			places, err := next(ctx, b.q, after, limit)
			if err != nil {
				return false, err
			}
			entries, err := b.entries(ctx, places)
			if err != nil {
				return false, err
			}
			for _, p := range places {
				for i, r := range entries[p.id] {
					switch {
					case int64(i) < at.No || !b.f.matches(eventStatus(r)):
						continue
					case len(b.found) == b.limit:
						at.No, at.Begun = int64(i), true
						return false, nil
					}
					b.add(r)
				}
				at.At, at.ID, at.No, at.Begun = p.at.Time, p.id, 0, true
			}
			switch {
			case len(places) < int(limit):
				return true, nil
			case b.full():
				return false, nil
			}
		}
	}
}

// findPiece is how many events are compared with the rest of a filter at a time.
const findPiece = 500

// chainStart is the section of the event with which a chain began. It has no header of the chain, whose id is its own.
func (b *browser) chainStart(ctx context.Context, at *bookmark) (over bool, err error) {
	id, err := uuid.Parse(b.f.Correlation)
	if err != nil || id.String() != b.f.Correlation {
		return true, nil
	}
	p, err := placeOf(ctx, b.q, id)
	if err != nil {
		return false, err
	}
	facts, err := factsOf(ctx, b.q, []place{p})
	if err != nil || facts[id].Correlation != "" {
		return err == nil, err
	}
	entries, err := b.entries(ctx, []place{p})
	if err != nil {
		return false, err
	}
	return b.take(entries[id], at), nil
}

// entries reads the entries of events: of each first the event, then those of listeners. It leaves out the events of
// another version of their entity than the filter's, and those with another cause.
func (b *browser) entries(ctx context.Context, places []place) (map[uuid.UUID][]queries.BrowseQueueRow, error) {
	all, err := entriesOf(ctx, b.q, places)
	version, cause := b.f.Entity.Version, b.f.Causation
	if err != nil || version == 0 && cause == uuid.Nil {
		return all, err
	}
	facts, err := factsOf(ctx, b.q, places)
	for id := range all {
		of := facts[id]
		if version != 0 && of.EntityVersion != version || cause != uuid.Nil && causeOf(of.Causation) != cause {
			delete(all, id)
		}
	}
	return all, err
}

// causeOf returns the event that a header causation_id names. It is zero if the header, which a producer may have
// written, names none.
func causeOf(header string) uuid.UUID {
	id, err := uuid.Parse(header)
	if err != nil {
		return uuid.Nil
	}
	return id
}

// entriesOf reads the entries of events, with the columns of a page: of each first the event, then those of listeners.
func entriesOf(ctx context.Context, q *queries.Queries, places []place) (map[uuid.UUID][]queries.BrowseQueueRow, error) {
	ids, seqs := split(places)
	all := make(map[uuid.UUID][]queries.BrowseQueueRow, len(places))
	if len(places) == 0 {
		return all, nil
	}
	add := func(rows []queries.BrowseQueueRow) {
		for _, r := range rows {
			all[r.ID.Bytes] = append(all[r.ID.Bytes], r)
		}
	}
	queued, err := q.EventsByID(ctx, queries.EventsByIDParams{Ids: ids})
	if err != nil {
		return nil, err
	}
	add(browsed(queued))
	if len(seqs) > 0 {
		logged, err := q.LogBySeq(ctx, seqs)
		if err != nil {
			return nil, err
		}
		add(browsed(logged))
	}
	heard, err := q.HeardByID(ctx, ids)
	if err != nil {
		return nil, err
	}
	add(browsed(heard))
	return all, nil
}

// factsOf reads what events are about and what has caused them.
func factsOf(ctx context.Context, q *queries.Queries, places []place) (map[uuid.UUID]queries.EventFactsRow, error) {
	ids, seqs := split(places)
	rows, err := q.EventFacts(ctx, queries.EventFactsParams{Ids: ids, Seqs: seqs})
	facts := make(map[uuid.UUID]queries.EventFactsRow, len(rows))
	for _, r := range rows {
		if _, there := facts[r.ID.Bytes]; !there {
			facts[r.ID.Bytes] = r
		}
	}
	return facts, err
}

// split returns the ids of places, and the positions of those that are in the log.
func split(places []place) (ids []pgtype.UUID, seqs []int64) {
	ids, seqs = make([]pgtype.UUID, len(places)), []int64{}
	for i, p := range places {
		ids[i] = pgvalue.UUID(p.id)
		if p.seq > 0 {
			seqs = append(seqs, p.seq)
		}
	}
	return ids, seqs
}

func idsOf(rows []queries.BrowseQueueRow) map[uuid.UUID]bool {
	ids := make(map[uuid.UUID]bool, len(rows))
	for _, r := range rows {
		ids[r.ID.Bytes] = true
	}
	return ids
}

// maxEntityTypes is how many types of entities are looked for: more are probably not types.
const maxEntityTypes = 100

// EntityTypes returns the types of entities that the events in the database have, by name, up to 100.
func (a *Admin) EntityTypes(ctx context.Context) ([]string, error) {
	types, err := a.db.Each(a.pool).EntityTypeList(ctx, maxEntityTypes)
	return types, a.db.Wrap("list entity types", err)
}

// Find returns what text may name, the most certain first: the id of an event, an entity as type/id, a dedupe key, a
// correlation id, and the id of a tenant. Each is a Filter with one field set, for which Events finds something. It is
// for a search box.
func (a *Admin) Find(ctx context.Context, text string) ([]Filter, error) {
	const what = "find"
	if text = strings.TrimSpace(text); text == "" || !isText(text) || len(text) > math.MaxInt16 {
		return nil, nil
	}
	var filters []Filter
	id, err := uuid.Parse(text)
	isID := err == nil && id != uuid.Nil
	if isID {
		filters = append(filters, Filter{IDs: []uuid.UUID{id}})
	}
	if kind, of, ok := strings.Cut(text, "/"); ok && kind != "" && of != "" {
		filters = append(filters, Filter{Entity: outbox.Entity{Type: kind, ID: of}})
	}
	filters = append(filters, Filter{Key: text}, Filter{Correlation: text})
	if isID {
		filters = append(filters, Filter{TenantID: uuid.NullUUID{UUID: id, Valid: true}})
	}
	var found []Filter
	for _, f := range filters {
		var there bool
		if f.Key != "" { // an index leads to dedupe keys, and not to partition keys
			there, err = a.hasKey(ctx, f)
		} else {
			var p EventPage
			p, err = a.Events(ctx, f, Page{Limit: 1})
			there = len(p.Events) > 0 || p.Next != "" && len(found) == 0 // of a tenant, it is not known yet
		}
		if err != nil {
			return nil, a.db.Wrap(what, err)
		}
		if there {
			found = append(found, f)
		}
		if there && f.IDs != nil {
			break // the page of an event leads to all others
		}
	}
	return found, nil
}

func (a *Admin) hasKey(ctx context.Context, f Filter) (bool, error) {
	b := &browser{q: a.db.Each(a.pool), f: f, limit: 1, seqs: make(map[uuid.UUID]int64)}
	_, err := b.byKey(ctx, &bookmark{})
	return len(b.found) > 0, err
}
