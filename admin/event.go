package admin

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/outbox"
)

// ErrUnknownEvent says that no event has the id, or that it was pruned.
var ErrUnknownEvent = errors.New("unknown event")

// EventDetail is all that is known of one event.
type EventDetail struct {
	EventStatus
	Entity  outbox.Entity
	Headers map[string]string
	// Payload is that of the enqueue, as it is: who shows it to people masks its sensitive fields.
	Payload json.RawMessage
	// Failures are the latest failed attempts, at most five, oldest first. Those of listeners are in Listeners.
	Failures []Failure
	// Limits are those of its topic, with what is used of its keys, if it is pending or processing. If it is due and one of
	// them is full, it waits for that.
	Limits []EventLimit
	// Listeners says of an event of a log topic where each attached listener is, and each that has it as a dead letter; by
	// name. Which topics a listener reads is only known while a process runs it. A listener that is known not to read the
	// topic is left out.
	Listeners []EventAtListener
	// Consumers says what consumer groups of this database have done with the event, and Acts what operators did that has
	// touched it, or may have.
	Consumers []EventAtConsumer
	Acts      []EventAct
}

// Chain returns the correlation id of the chain in which the event is: that of its headers, or else its own id.
func (d *EventDetail) Chain() string {
	return cmp.Or(d.Headers[outbox.CorrelationHeader], d.ID.String())
}

// Failure is a failed attempt.
type Failure struct {
	Attempt int       `json:"attempt"`
	At      time.Time `json:"at,omitzero"`
	Worker  uuid.UUID `json:"worker,omitzero"`
	Error   string    `json:"error"`
}

// EventAtListener is what has become of an event at one listener.
type EventAtListener struct {
	Listener string `json:"listener"`
	// Status is StatusPending (the listener has not come to it, or tries it again), StatusParked, StatusDead, or
	// StatusDelivered: the listener has passed it. It also passes events of topics that it does not read, and those before
	// its start.
	Status      Status    `json:"status"`
	Attempts    int       `json:"attempts,omitempty"`
	RetryAfter  time.Time `json:"retry_after,omitzero"`  // of a pending or parked event that has failed
	FinalizedAt time.Time `json:"finalized_at,omitzero"` // of a dead one
	LastError   string    `json:"last_error,omitempty"`
	Failures    []Failure `json:"failures,omitempty"` // the latest failed attempts, at most five, oldest first
}

// Event returns all of the event with this id. The error wraps ErrUnknownEvent if there is none. The log has no index
// of ids: an event of a log topic is looked for where its id, a UUID v7, says that it was enqueued, and an event with
// another id among the latest million.
func (a *Admin) Event(ctx context.Context, id uuid.UUID) (EventDetail, error) {
	var d EventDetail
	err := a.db.InSnapshot(ctx, a.pool, func(q *queries.Queries) (err error) {
		if d, err = readEvent(ctx, q, id); err != nil {
			return err
		}
		of := lifeOfDetail(&d)
		err = readAround(ctx, q, []*EventLife{of})
		d.Consumers, d.Acts = of.Consumers, of.Acts
		return err
	})
	if err != nil {
		return EventDetail{}, a.db.Wrap("show event "+id.String(), err)
	}
	return d, nil
}

func readEvent(ctx context.Context, q *queries.Queries, id uuid.UUID) (EventDetail, error) {
	var d EventDetail
	rows, err := q.EventsByID(ctx, queries.EventsByIDParams{Ids: pgvalue.UUIDs([]uuid.UUID{id})})
	if err != nil {
		return d, err
	}
	if len(rows) > 0 {
		d.EventStatus = eventStatus(queries.BrowseQueueRow(rows[0]))
		details, err := q.EventDetail(ctx, pgvalue.UUID(id))
		if err != nil || len(details) == 0 {
			return d, errtext.Join(err, ErrUnknownEvent)
		}
		r := details[0]
		d.fill(r.EntityType, r.EntityID, r.EntityVersion, r.Headers, r.Payload)
		d.Failures = failuresOf(r.Failures)
		if d.Status == StatusPending || d.Status == StatusProcessing {
			d.Limits, err = limitsOfEvent(ctx, q, &d.EventStatus)
		}
		return d, err
	}
	seq, err := findInLog(ctx, q, id)
	if err != nil {
		return d, err
	}
	heard, err := q.HeardByID(ctx, pgvalue.UUIDs([]uuid.UUID{id}))
	if err != nil {
		return d, err
	}
	switch {
	case seq > 0:
		logged, err := q.LogBySeq(ctx, []int64{seq})
		if err != nil {
			return d, err
		}
		details, err := q.LogDetail(ctx, seq)
		if err != nil || len(details) == 0 || len(logged) == 0 {
			return d, errtext.Join(err, ErrUnknownEvent)
		}
		r := details[0]
		d.EventStatus = eventStatus(queries.BrowseQueueRow(logged[0]))
		d.fill(r.EntityType, r.EntityID, r.EntityVersion, r.Headers, r.Payload)
	case len(heard) > 0:
		d.EventStatus = eventStatus(queries.BrowseQueueRow(heard[0]))
		details, err := q.HeardDetail(ctx, pgvalue.UUID(id))
		if err != nil || len(details) == 0 {
			return d, errtext.Join(err, ErrUnknownEvent)
		}
		r := details[0]
		d.fill(r.EntityType, r.EntityID, r.EntityVersion, r.Headers, r.Payload)
		d.forget()
	default:
		return d, ErrUnknownEvent
	}
	failures, err := listenerFailures(ctx, q, pgvalue.UUIDs([]uuid.UUID{id}))
	if err != nil {
		return d, err
	}
	d.Listeners, err = standing(ctx, q, d.Name(), seq, heard)
	for i, l := range d.Listeners {
		d.Listeners[i].Failures = failures[atListener{id, l.Listener}]
	}
	return d, err
}

func (d *EventDetail) fill(entityType, entityID string, entityVersion int64, headers, payload json.RawMessage) {
	d.Entity = outbox.Entity{Type: entityType, ID: entityID, Version: entityVersion}
	d.Headers, d.Payload = pgvalue.Headers(headers), payload
}

// standing merges where the cursors are with what the listeners have of the event.
func standing(
	ctx context.Context, q *queries.Queries, topic string, seq int64, heard []queries.HeardByIDRow,
) ([]EventAtListener, error) {
	cursors, err := q.LogStanding(ctx, []int64{seq})
	if err != nil {
		return nil, err
	}
	processes, err := aliveProcesses(ctx, q)
	if err != nil {
		return nil, err
	}
	return standingOf(cursors, processes, topic, heard), nil
}

// standingOf is standing of what was read.
func standingOf(
	cursors []queries.LogStandingRow, processes []Process, topic string, heard []queries.HeardByIDRow,
) []EventAtListener {
	reads := func(listener string) bool {
		known := false
		for _, p := range processes {
			if p.Kind == ProcessListener && p.Name == listener {
				if _, ok := p.Topics[topic]; ok {
					return true
				}
				known = true
			}
		}
		return !known
	}
	byName := make(map[string]EventAtListener)
	for _, c := range cursors {
		if !reads(c.Listener) {
			continue
		}
		s := EventAtListener{Listener: c.Listener, Status: StatusPending}
		if c.Passed {
			s.Status = StatusDelivered
		} else if c.Attempts > 0 {
			s.Attempts, s.RetryAfter, s.LastError = int(c.Attempts), c.RetryAfter.Time.UTC(), c.LastError
		}
		byName[c.Listener] = s
	}
	for _, r := range heard {
		byName[r.Listener] = EventAtListener{
			Listener: r.Listener, Status: Status(r.Status), Attempts: int(r.Attempts), RetryAfter: r.NextAttemptAt.Time.UTC(),
			FinalizedAt: r.FinalizedAt.Time.UTC(), LastError: r.LastError,
		}
	}
	list := make([]EventAtListener, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		list = append(list, byName[name])
	}
	return list
}

// atListener names an event at a listener.
type atListener struct {
	id       uuid.UUID
	listener string
}

// listenerFailures reads the failed attempts of listeners at events.
func listenerFailures(ctx context.Context, q *queries.Queries, ids []pgtype.UUID) (map[atListener][]Failure, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	rows, err := q.ListenerFailures(ctx, ids)
	failures := make(map[atListener][]Failure)
	for _, r := range rows {
		at := atListener{r.ID.Bytes, r.Listener}
		failures[at] = append(failures[at], Failure{
			Attempt: int(r.Attempt), At: r.At.Time.UTC(), Worker: r.Worker.Bytes, Error: r.Error,
		})
	}
	return failures, err
}

// failuresOf reads the column failures. What is not a failure, after a change by hand, is left out.
func failuresOf(column json.RawMessage) []Failure {
	var entries []json.RawMessage
	if json.Unmarshal(column, &entries) != nil {
		return nil
	}
	var failures []Failure
	for _, e := range entries {
		var f struct {
			Attempt int
			At      string
			Worker  string
			Error   string
		}
		if json.Unmarshal(e, &f) != nil {
			continue
		}
		worker, _ := uuid.Parse(f.Worker)
		failures = append(failures, Failure{Attempt: f.Attempt, At: parseTime(f.At), Worker: worker, Error: f.Error})
	}
	return failures
}

// parseTime reads a time as PostgreSQL writes it into JSON: with a T, and with an offset.
func parseTime(text string) time.Time {
	text = strings.Replace(text, " ", "T", 1)
	for _, layout := range []string{
		time.RFC3339Nano, "2006-01-02T15:04:05.999999999Z0700", "2006-01-02T15:04:05.999999999Z07",
	} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC()
		}
	}
	return time.Time{}
}

const (
	findClose = 2 * time.Second
	findNear  = time.Minute
	findFar   = time.Hour
	findMost  = 1_000_000 // positions that are looked at
)

// findInLog returns the position of the event with this id, or 0.
func findInLog(ctx context.Context, q *queries.Queries, id uuid.UUID) (int64, error) {
	return findAround(ctx, q, id, findClose, findNear, findFar)
}

// findAround is findInLog for times that lie up to the first of arounds from that of the id, or else up to the next.
func findAround(ctx context.Context, q *queries.Queries, id uuid.UUID, arounds ...time.Duration) (int64, error) {
	last, err := q.LogLast(ctx)
	if err != nil || last == 0 {
		return 0, err
	}
	look := func(low, high int64) (int64, error) {
		seqs, err := q.LogFind(ctx, queries.LogFindParams{Low: low, High: high, ID: pgvalue.UUID(id)})
		if err != nil || len(seqs) == 0 {
			return 0, err
		}
		return seqs[0], nil
	}
	if id.Version() != 7 {
		return look(last-findMost, last)
	}
	at := time.UnixMilli(int64(binary.BigEndian.Uint64(id[:8]) >> 16))
	for _, around := range arounds {
		low, err := logAt(ctx, q, at.Add(-around))
		if err != nil {
			return 0, err
		}
		high, err := logAt(ctx, q, at.Add(around))
		if err != nil {
			return 0, err
		}
		if high-low > findMost {
			if low, err = logAt(ctx, q, at); err != nil {
				return 0, err
			}
			low, high = low-findMost/2, low+findMost/2
		}
		if seq, err := look(low, high); err != nil || seq > 0 {
			return seq, err
		}
	}
	return 0, nil
}
