package admin

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// Page says which part of a list is wanted.
type Page struct {
	// Limit is how many entries are returned at most; 0 means 50, and more than 1,000 is an error.
	Limit int
	// After is the Next of the page before; "" means the first page. It belongs to the same Filter.
	After string
}

// EventPage is a part of a list of events.
type EventPage struct {
	Events []EventStatus `json:"events"`
	// Next is the Page.After of the next page; "" means that this is the last one. A page with a Next may have fewer
	// events than its limit, even none: then so many others were compared with the filter that the rest is left to the
	// next page.
	Next string `json:"next,omitempty"`
}

// EventStatus is an event without its payload, and what has become of it.
type EventStatus struct {
	ID               uuid.UUID `json:"-"`
	Namespace, Topic string    `json:"-"`
	// Listener has the event as a dead letter or has parked it; "" for queue topics and for the log.
	Listener     string        `json:"listener,omitempty"`
	Version      int           `json:"version"`
	TenantID     uuid.NullUUID `json:"tenant_id,omitzero"`
	DedupeKey    string        `json:"dedupe_key,omitempty"`
	PartitionKey string        `json:"partition_key,omitempty"`
	Status       Status        `json:"status"` // "" if a change by hand has deleted the state of the event
	Attempts     int           `json:"attempts"`
	MaxAttempts  int           `json:"max_attempts,omitempty"` // 0 if it is not known
	CreatedAt    time.Time     `json:"created_at,omitzero"`    // zero if a change by hand has deleted the row in events
	// zero if it is final, logged or parked behind another one
	NextAttemptAt time.Time     `json:"next_attempt_at,omitzero"`
	LockedBy      uuid.NullUUID `json:"locked_by,omitzero"`
	LockedUntil   time.Time     `json:"locked_until,omitzero"` // zero if it is not in flight
	FinalizedAt   time.Time     `json:"finalized_at,omitzero"` // when it was delivered or died
	// of the latest failed attempt, also if it was delivered later
	LastError string `json:"last_error,omitempty"`
}

// Name returns "namespace/topic".
func (s EventStatus) Name() string { return s.Namespace + "/" + s.Topic }

const (
	defaultPage = 50
	maxPage     = 1000
	maxIDs      = 1000
	browsePiece = 10_000                 // rows that one statement compares with a filter
	browseFor   = 400 * time.Millisecond // after which a page is returned as it is
)

// Events returns a page of the events that f selects, in this order: events that are not final, those first that are
// due first; parked events, the latest first; dead letters, the latest first; delivered events, the latest first; and
// the log, the latest first. A listener that has parked an event or has it as a dead letter has a separate entry next
// to that of the log. Lists of IDs and of one dedupe key begin with the events themselves. Those of an Entity, a
// Correlation or a Causation are in the order of their enqueue, the oldest first.
//
// A page takes well under a second, whatever is in the tables: an index leads to events by status, topic, id, dedupe
// key, entity, correlation and, by the chain, causation. Other fields (tenant, partition key, error, times) are compared with
// one event after another; after 400 milliseconds Events returns what it has found, with a Next that continues. Each statement sees the tables at another
// moment, so an event that changes its status meanwhile may appear twice, or not at all.
func (a *Admin) Events(ctx context.Context, f Filter, page Page) (EventPage, error) {
	p, _, err := a.browse(ctx, "list events", f, page)
	return p, err
}

// browse is Events. It also returns the positions of those of the events that are in the log.
func (a *Admin) browse(ctx context.Context, what string, f Filter, page Page) (EventPage, map[uuid.UUID]int64, error) {
	if err := f.validateEvents(); err != nil {
		return EventPage{}, nil, fmt.Errorf("%s: %w", what, err)
	}
	limit, err := page.limit()
	if err != nil {
		return EventPage{}, nil, fmt.Errorf("%s: %w", what, err)
	}
	b := &browser{
		q: a.db.Each(a.pool), f: f, limit: limit, stop: time.Now().Add(browseFor), seqs: make(map[uuid.UUID]int64),
	}
	sections := b.sections()
	at, err := parseBookmark(page.After, len(sections))
	if err != nil {
		return EventPage{}, nil, fmt.Errorf("%s: %w", what, err)
	}
	for at.Section < len(sections) {
		over, err := sections[at.Section](ctx, &at)
		switch {
		case err != nil:
			return EventPage{}, nil, a.db.Wrap(what, err)
		case !over:
			return EventPage{Events: b.found, Next: at.String()}, b.seqs, nil
		}
		at = bookmark{Section: at.Section + 1}
		if at.Section < len(sections) && b.full() {
			return EventPage{Events: b.found, Next: at.String()}, b.seqs, nil
		}
	}
	return EventPage{Events: b.found}, b.seqs, nil
}

func (f Filter) validateEvents() error {
	if err := f.validate(); err != nil {
		return err
	}
	switch {
	case f.Group != "":
		return argumentError("Filter", "Group selects among dead letters: list them by group instead")
	case f.Listener != "" && f.Status != "" && f.Status != StatusDead && f.Status != StatusParked:
		return argumentError("Filter", "a listener has dead and parked events, none that are %s", f.Status)
	case len(f.IDs) > maxIDs:
		return argumentError("Filter", "%d IDs are more than %d", len(f.IDs), maxIDs)
	}
	leads := 0
	for _, set := range []bool{f.IDs != nil, f.Entity.Type != "", f.Correlation != "", f.Causation != uuid.Nil} {
		if set {
			leads++
		}
	}
	if leads > 1 {
		return argumentError("Filter", "IDs, Entity, Correlation and Causation each lead to events: set one of them")
	}
	return nil
}

// bookmark is where a page begins: behind an entry of a section.
type bookmark struct {
	Section int       `json:"s"`
	At      time.Time `json:"t,omitzero"`
	ID      uuid.UUID `json:"i,omitzero"`
	No      int64     `json:"n,omitempty"`
	Begun   bool      `json:"b,omitempty"` // otherwise it is the start of the section
}

func (p bookmark) String() string {
	text, _ := json.Marshal(p) // cannot fail
	return base64.RawURLEncoding.EncodeToString(text)
}

func parseBookmark(text string, sections int) (bookmark, error) {
	var p bookmark
	if text == "" {
		return p, nil
	}
	plain, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(plain, &p)
	}
	if err != nil || p.Section < 0 || p.Section >= sections {
		return p, argumentError("Page", "After is not the Next of a page with this filter")
	}
	return p, nil
}

// browser collects a page.
type browser struct {
	q     *queries.Queries
	f     Filter
	limit int
	stop  time.Time
	found []EventStatus
	seqs  map[uuid.UUID]int64 // the positions of those in the log
	chain string              // whose events ofChain lists
}

// add adds an event to the page.
func (b *browser) add(r queries.BrowseQueueRow) {
	if Status(r.Status) == StatusLogged {
		b.seqs[r.ID.Bytes] = r.No
	}
	b.found = append(b.found, eventStatus(r))
}

// section adds events behind at, and moves at to the last one. It returns true if there are no others in it.
type section func(ctx context.Context, at *bookmark) (over bool, err error)

func (b *browser) full() bool { return len(b.found) >= b.limit || !time.Now().Before(b.stop) }

func (b *browser) sections() []section {
	f := b.f
	switch {
	case f.IDs != nil:
		return []section{b.byID}
	case f.Entity.Type != "":
		return []section{b.inOrder(b.ofEntity)}
	case f.Correlation != "":
		b.chain = f.Correlation
		return []section{b.chainStart, b.inOrder(b.ofChain)}
	case f.Causation != uuid.Nil:
		return []section{b.caused}
	}
	var list []section
	if f.Key != "" && f.Listener == "" {
		list = append(list, b.byKey)
	}
	want := func(statuses ...Status) bool { return f.Status == "" || slices.Contains(statuses, f.Status) }
	if f.Listener == "" && want(StatusPending, StatusProcessing) {
		list = append(list, b.queue)
	}
	if want(StatusParked) {
		list = append(list, b.parked)
	}
	if want(StatusDead) {
		list = append(list, b.dead)
	}
	if f.Listener == "" && want(StatusDelivered) {
		if f.Until.IsZero() {
			list = append(list, b.delivered(time.Time{}, f.Since))
		} else {
			// What was delivered before Until was also enqueued before. Behind these follow those that took longer.
			list = append(list, b.delivered(f.Until, f.Since), b.delivered(time.Time{}, f.Until))
		}
	}
	if f.Listener == "" && want(StatusLogged) && f.Error == "" {
		list = append(list, b.log)
	}
	return list
}

// compares reports whether an index does not lead to the events: others are read, and compared with the filter.
func (b *browser) compares() bool {
	f := b.f
	return f.Namespace != "" || f.Listener != "" || f.TenantID.Valid || f.Key != "" || f.Error != "" ||
		!f.Since.IsZero() || !f.Until.IsZero() || f.Entity.Version != 0 || f.Causation != uuid.Nil ||
		f.Status == StatusPending || f.Status == StatusProcessing
}

// piece is how many rows a statement reads of each of n parts of a table.
func (b *browser) piece(n int) int32 {
	rest := b.limit - len(b.found)
	if !b.compares() {
		return int32(rest)
	}
	return int32(max(rest, browsePiece/n))
}

// walk reads piece after piece until the section is over or the page is full.
func (b *browser) walk(at *bookmark, read func(limit int32) ([]queries.BrowseQueueRow, error)) (over bool, err error) {
	for {
		limit := b.limit - len(b.found)
		rows, err := read(int32(limit))
		if err != nil {
			return false, err
		}
		more := false
		for _, r := range rows {
			*at = bookmark{Section: at.Section, At: r.EventAt.Time, ID: r.ID.Bytes, No: r.No, Begun: true}
			if r.Matches {
				b.add(r)
			}
			if more = r.Edge || len(b.found) == b.limit; more {
				break
			}
		}
		switch {
		case !more && len(rows) < limit:
			return true, nil
		case b.full():
			return false, nil
		}
	}
}

func (b *browser) queue(ctx context.Context, at *bookmark) (bool, error) {
	lanes, err := b.q.QueueLanes(ctx)
	if err != nil {
		return false, err
	}
	p := queries.BrowseQueueParams{
		Namespace: b.f.Namespace, Topic: b.f.Topic, TenantID: pgvalue.NullUUID(b.f.TenantID), Key: b.f.Key,
		Since: bound(b.f.Since), Until: bound(b.f.Until), Error: b.f.Error, Status: string(b.f.Status),
	}
	for _, l := range lanes {
		if b.f.Namespace == "" || l.Namespace == b.f.Namespace {
			p.Namespaces, p.Lanes = append(p.Namespaces, l.Namespace), append(p.Lanes, l.Lane)
		}
	}
	if len(p.Lanes) == 0 {
		return true, nil
	}
	return b.walk(at, func(limit int32) ([]queries.BrowseQueueRow, error) {
		p.Piece, p.EventLimit = b.piece(len(p.Lanes)), limit
		p.AfterAt, p.AfterID = pgtype.Timestamptz{
			InfinityModifier: pgtype.NegativeInfinity, Valid: true,
		}, pgvalue.UUID(uuid.Nil)
		if at.Begun {
			p.AfterAt, p.AfterID = pgvalue.Time(at.At), pgvalue.UUID(at.ID)
		}
		return b.q.BrowseQueue(ctx, p)
	})
}

// delivered returns the section of what was delivered before start, if it is not zero, and at end or later.
func (b *browser) delivered(start, end time.Time) section {
	return func(ctx context.Context, at *bookmark) (bool, error) {
		topics, err := b.q.TopicsDelivered(ctx)
		if err != nil {
			return false, err
		}
		p := queries.BrowseDeliveredParams{
			Namespace: b.f.Namespace, Topic: b.f.Topic, TenantID: pgvalue.NullUUID(b.f.TenantID), Key: b.f.Key,
			Since: bound(b.f.Since), Until: bound(b.f.Until), Error: b.f.Error,
			FloorAt: pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true},
		}
		for _, t := range topics {
			if (b.f.Namespace == "" || t.Namespace == b.f.Namespace) && (b.f.Topic == "" || t.Topic == b.f.Topic) {
				p.Namespaces, p.Topics = append(p.Namespaces, t.Namespace), append(p.Topics, t.Topic)
			}
		}
		if len(p.Topics) == 0 {
			return true, nil
		}
		if !end.IsZero() {
			p.FloorAt = bound(end)
		}
		return b.walk(at, func(limit int32) ([]queries.BrowseQueueRow, error) {
			p.Piece, p.EventLimit = b.piece(len(p.Topics)), limit
			switch {
			case at.Begun:
				p.AfterAt, p.AfterID = pgvalue.Time(at.At), pgvalue.UUID(at.ID)
			case start.IsZero():
				p.AfterAt, p.AfterID = pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}, pgvalue.UUID(uuid.Nil)
			default:
				p.AfterAt, p.AfterID = bound(start), pgvalue.UUID(uuid.Nil)
			}
			rows, err := b.q.BrowseDelivered(ctx, p)
			return browsed(rows), err
		})
	}
}

func (b *browser) dead(ctx context.Context, at *bookmark) (bool, error) {
	p := queries.BrowseDeadParams{
		Namespace: b.f.Namespace, Topic: b.f.Topic, TenantID: pgvalue.NullUUID(b.f.TenantID), Key: b.f.Key,
		Since: bound(b.f.Since), Until: bound(b.f.Until), Error: b.f.Error, Listener: b.f.Listener,
	}
	return b.walk(at, func(limit int32) ([]queries.BrowseQueueRow, error) {
		p.Piece, p.EventLimit, p.AfterNo = b.piece(1), limit, math.MaxInt64
		if at.Begun {
			p.AfterNo = at.No
		}
		rows, err := b.q.BrowseDead(ctx, p)
		return browsed(rows), err
	})
}

func (b *browser) parked(ctx context.Context, at *bookmark) (bool, error) {
	p := queries.BrowseParkedParams{
		Namespace: b.f.Namespace, Topic: b.f.Topic, TenantID: pgvalue.NullUUID(b.f.TenantID), Key: b.f.Key,
		Since: bound(b.f.Since), Until: bound(b.f.Until), Error: b.f.Error, Listener: b.f.Listener,
	}
	return b.walk(at, func(limit int32) ([]queries.BrowseQueueRow, error) {
		p.Piece, p.EventLimit, p.AfterNo = b.piece(1), limit, math.MaxInt64
		if at.Begun {
			p.AfterNo = at.No
		}
		rows, err := b.q.BrowseParked(ctx, p)
		return browsed(rows), err
	})
}

func (b *browser) log(ctx context.Context, at *bookmark) (bool, error) {
	p := queries.BrowseLogParams{
		Namespace: b.f.Namespace, Topic: b.f.Topic, TenantID: pgvalue.NullUUID(b.f.TenantID), Key: b.f.Key,
		Since: bound(b.f.Since), Until: bound(b.f.Until), Error: b.f.Error,
	}
	start := int64(math.MaxInt64)
	var err error
	if !b.f.Since.IsZero() {
		if p.FloorNo, err = logAt(ctx, b.q, b.f.Since.Add(-logSkew)); err != nil {
			return false, err
		}
	}
	if !b.f.Until.IsZero() && !at.Begun {
		if start, err = logAt(ctx, b.q, b.f.Until.Add(logSkew)); err != nil {
			return false, err
		}
	}
	return b.walk(at, func(limit int32) ([]queries.BrowseQueueRow, error) {
		p.Piece, p.EventLimit, p.AfterNo = b.piece(1), limit, start
		if at.Begun {
			p.AfterNo = at.No
		}
		rows, err := b.q.BrowseLog(ctx, p)
		return browsed(rows), err
	})
}

// logSkew is how long before its position was drawn an event may have its created_at: that is the time at which its
// statement began.
const logSkew = time.Hour

// logAt returns the position of the first event of the log that was enqueued at t or later, or the one behind the last.
// The log is about in the order of created_at.
func logAt(ctx context.Context, q *queries.Queries, t time.Time) (int64, error) {
	last, err := q.LogLast(ctx)
	if err != nil {
		return 0, err
	}
	low, high := int64(0), last+1 // the answer is in [low, high]
	for low < high {
		middle := low + (high-low)/2
		e, err := q.LogFrom(ctx, middle)
		if err != nil {
			return 0, err
		}
		if e.CreatedAt.Time.Before(t) {
			low = e.Seq + 1
		} else {
			high = middle
		}
	}
	return low, nil
}

// byID returns the events of the filter's ids, all that fit, in the order of found.
func (b *browser) byID(ctx context.Context, at *bookmark) (bool, error) {
	ids := pgvalue.UUIDs(b.f.IDs)
	rows, err := b.q.EventsByID(ctx, queries.EventsByIDParams{Ids: ids})
	if err != nil {
		return false, err
	}
	all := browsed(rows)
	known := idsOf(all)
	var seqs []int64
	for _, id := range b.f.IDs {
		if known[id] {
			continue
		}
		seq, err := findInLog(ctx, b.q, id)
		if err != nil {
			return false, err
		}
		if seq > 0 {
			seqs = append(seqs, seq)
		}
	}
	logged, err := b.q.LogBySeq(ctx, seqs)
	if err != nil {
		return false, err
	}
	heard, err := b.q.HeardByID(ctx, ids)
	if err != nil {
		return false, err
	}
	all = append(all, browsed(logged)...)
	all = append(all, browsed(heard)...)
	return b.take(all, at), nil
}

// byKey returns the events that have the filter's key as their dedupe key.
func (b *browser) byKey(ctx context.Context, at *bookmark) (bool, error) {
	rows, err := b.q.EventsByID(ctx, queries.EventsByIDParams{Ids: []pgtype.UUID{}, Key: b.f.Key})
	if err != nil {
		return false, err
	}
	all := browsed(rows)
	seqs, err := b.q.LogByKey(ctx, b.f.Key)
	if err != nil {
		return false, err
	}
	logged, err := b.q.LogBySeq(ctx, seqs)
	if err != nil {
		return false, err
	}
	all = append(all, browsed(logged)...)
	return b.take(all, at), nil
}

// take adds those of a short list that match, behind the first at.No of them.
func (b *browser) take(rows []queries.BrowseQueueRow, at *bookmark) (over bool) {
	n := int64(0)
	for _, r := range rows {
		e := eventStatus(r)
		if !b.f.matches(e) {
			continue
		}
		if n++; n <= at.No {
			continue
		}
		if len(b.found) == b.limit {
			*at = bookmark{Section: at.Section, No: n - 1, Begun: true}
			return false
		}
		b.add(r)
	}
	return true
}

// matches compares an event with all but the ids.
func (f Filter) matches(e EventStatus) bool {
	return (f.Namespace == "" || e.Namespace == f.Namespace) && (f.Topic == "" || e.Topic == f.Topic) &&
		(f.Listener == "" || e.Listener == f.Listener) && (!f.TenantID.Valid || e.TenantID == f.TenantID) &&
		(f.Status == "" || e.Status == f.Status) && (f.Key == "" || e.DedupeKey == f.Key || e.PartitionKey == f.Key) &&
		(f.Since.IsZero() || !e.CreatedAt.Before(f.Since)) && (f.Until.IsZero() || e.CreatedAt.Before(f.Until)) &&
		(f.Error == "" || strings.Contains(e.LastError, f.Error))
}

func bound(t time.Time) pgtype.Timestamptz { return pgvalue.Time(pgvalue.Clamp(t)) }

// browsed returns rows in the form of the first of the statements, which all have the same columns.
func browsed[R queries.BrowseDeliveredRow | queries.BrowseDeadRow | queries.BrowseParkedRow | queries.BrowseLogRow |
	queries.EventsByIDRow | queries.LogBySeqRow | queries.HeardByIDRow](rows []R) []queries.BrowseQueueRow {
	converted := make([]queries.BrowseQueueRow, len(rows))
	for i, r := range rows {
		converted[i] = queries.BrowseQueueRow(r)
	}
	return converted
}

func eventStatus(r queries.BrowseQueueRow) EventStatus {
	return EventStatus{
		ID: r.ID.Bytes, Namespace: r.Namespace, Topic: r.Topic, Listener: r.Listener, Version: int(r.Version),
		TenantID:  uuid.NullUUID{UUID: r.TenantID.Bytes, Valid: r.TenantID.Valid},
		DedupeKey: r.DedupeKey, PartitionKey: r.PartitionKey, CreatedAt: r.CreatedAt.Time.UTC(), Status: Status(r.Status),
		Attempts: int(r.Attempts), MaxAttempts: int(r.MaxAttempts), NextAttemptAt: r.NextAttemptAt.Time.UTC(),
		LockedBy:    uuid.NullUUID{UUID: r.LockedBy.Bytes, Valid: r.LockedBy.Valid},
		LockedUntil: r.LockedUntil.Time.UTC(), FinalizedAt: r.FinalizedAt.Time.UTC(), LastError: r.LastError,
	}
}
