// Package admin has the operations of an operator: look at topics, listeners, events and processes, pause and resume,
// replay or discard dead letters, skip an event, rewind, detach, prune, repair listeners after a restore, and find out
// what is wrong (Doctor). It needs neither the handlers nor the processes that run them.
//
//	a, err := admin.New(pool, "")
//	if err != nil {
//		return err
//	}
//	topics, err := a.Topics(ctx)
//
// The command outboxgen offers the same: `outboxgen status`, `events`, `dead`, `pause`, `resume`, `listener`, `prune`,
// `forget`, `enqueue`, `processes`, `audit`, `drained` and `doctor`.
package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/postgres/bell"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/outbox"
)

// Admin looks at what a schema has, and manages it from outside: it needs neither handlers nor their processes, which
// may run meanwhile. It has no state and may be used from any number of goroutines.
type Admin struct {
	pool     *pgxpool.Pool
	db       *schemadb.Schema
	preview  bool
	who, why string // of As

	goneAfter time.Duration // of WithGoneAfter
	progress  func(done, total int64)
}

// New returns an Admin for schema; "" means "outbox". The caller closes pool.
func New(pool *pgxpool.Pool, schema string) (*Admin, error) {
	if pool == nil {
		return nil, errors.New("new admin: no pool")
	}
	db, err := schemadb.Open(schema)
	if err != nil {
		return nil, fmt.Errorf("new admin: %w", err)
	}
	return &Admin{pool: pool, db: db, progress: func(int64, int64) {}, goneAfter: DefaultGoneAfter}, nil
}

// Preview returns an Admin that changes nothing: its methods return what those of a would return now.
func (a *Admin) Preview() *Admin {
	b := *a
	b.preview = true
	return &b
}

// WithProgress returns an Admin whose Rebase, Replay and Discard call report with the number of events that they have
// processed.
func (a *Admin) WithProgress(report func(done, total int64)) *Admin {
	b := *a
	b.progress = report
	return &b
}

// UnknownListenerError says that no listener of that name is attached: it has not run yet, or it was detached.
type UnknownListenerError struct {
	Name  string
	Known []string // the attached listeners, by name
}

// Error names the listener and the attached ones.
func (e *UnknownListenerError) Error() string {
	if len(e.Known) == 0 {
		return fmt.Sprintf("unknown listener %q: none is attached", e.Name)
	}
	return fmt.Sprintf("unknown listener %q: attached are %s", e.Name, strings.Join(e.Known, ", "))
}

// ListenerState is the state of a shard of a listener.
type ListenerState string

// The states. If several apply, the first of them is reported.
const (
	// ListenerRestored: the database was restored, and the listener does not run before Rebase.
	ListenerRestored ListenerState = "restored"
	// ListenerPaused: an operator has paused it, and the pause has not ended.
	ListenerPaused ListenerState = "paused"
	// ListenerBlocked: its next event has failed and waits for the next attempt.
	ListenerBlocked ListenerState = "blocked"
	// ListenerLagging: an unhandled event is older than its max_lag.
	ListenerLagging ListenerState = "lagging"
	// ListenerResharding: it waits for the other shards, because their number is being changed.
	ListenerResharding ListenerState = "resharding"
	// ListenerRunning: a process holds it and handles its events.
	ListenerRunning ListenerState = "running"
	// ListenerWaiting: there are events to read, and no process holds it.
	ListenerWaiting ListenerState = "waiting"
	// ListenerIdle: there is nothing to read.
	ListenerIdle ListenerState = "idle"
)

// ListenerStatus is one shard of a listener.
type ListenerStatus struct {
	Listener  string        `json:"listener"`
	Shard     int           `json:"shard"`
	Shards    int           `json:"shards"`
	ReshardTo int           `json:"reshard_to,omitempty"` // the requested number of shards; 0 if no change was requested
	State     ListenerState `json:"state"`
	Paused    bool          `json:"paused"`
	// Alarm reports that the database was restored, or that Lag is more than MaxLag.
	Alarm bool `json:"alarm"`
	// Holder is the worker that holds the shard until LeaseUntil; not valid if none does. Nobody holds an idle shard.
	Holder     uuid.NullUUID `json:"holder,omitzero"`
	LeaseUntil time.Time     `json:"lease_until,omitzero"`
	// Position is the seq up to which the shard has read the log, except for events that had not committed then.
	Position int64 `json:"position"`
	// Unread estimates the events that it has not read: the positions after its own, divided by Shards. Numbers that
	// were rolled back count too, and so do events of topics that it does not read.
	Unread int64 `json:"unread"`
	// Lag is the age of the oldest unhandled event, including parked ones. MaxLag is the lag that raises an alarm; 0
	// means no alarm.
	Lag, MaxLag time.Duration `json:"-"`
	// Attempts is how often its next event has failed, Head is that event, RetryAfter is when it is tried again and
	// LastError why it failed. If the process died while handling the event, it is not known which event it was: Head
	// is then the first possible one.
	Attempts   int           `json:"attempts"`
	Head       uuid.NullUUID `json:"event_id,omitzero"`
	RetryAfter time.Time     `json:"retry_after,omitzero"`
	LastError  string        `json:"last_error,omitempty"`
	// DeadLetters counts the dead letters that are kept. ParkedEvents counts the events that wait behind failed ones of
	// ParkedKeys keys.
	DeadLetters  int64     `json:"dead_letters"`
	ParkedKeys   int64     `json:"parked_keys"`
	ParkedEvents int64     `json:"parked_events"`
	AttachedAt   time.Time `json:"attached_at"`
	AdvancedAt   time.Time `json:"advanced_at,omitzero"` // zero before the first lease
	// Processes are those that run the listener, and Pauses those of the listener. All its shards have the same ones.
	Processes []Process `json:"processes"`
	Pauses    []Pause   `json:"pauses"`
	// UnhandledVersions are those at which the shard has stopped, or that its parked events have, although Processes read
	// their topics: they are newer than what any of Processes knows.
	UnhandledVersions []TopicVersion `json:"unhandled_versions,omitempty"`
}

// PassedTopic is a topic that the process By of a listener passes and the process ReadBy reads.
type PassedTopic struct {
	Topic      string // "namespace/topic"
	By, ReadBy Process
}

// PassedTopics returns the topics that some of Processes read and others do not, by name, each with one process of both
// kinds. A process that has a shard moves its cursor past the events that it does not read, so no other process gets
// them. During a deployment an old build treats the topics of a new one so. Otherwise two services use the same name
// for their listeners.
func (s ListenerStatus) PassedTopics() []PassedTopic {
	reads := make(map[string]Process)
	for _, p := range s.Processes {
		for topic := range p.Topics {
			reads[topic] = p
		}
	}
	var list []PassedTopic
	for _, topic := range slices.Sorted(maps.Keys(reads)) {
		for _, p := range s.Processes {
			if _, ok := p.Topics[topic]; !ok {
				list = append(list, PassedTopic{Topic: topic, By: p, ReadBy: reads[topic]})
				break
			}
		}
	}
	return list
}

// TopicVersion is a payload version of a topic.
type TopicVersion struct {
	Topic   string `json:"topic"` // "namespace/topic"
	Version int    `json:"version"`
}

// Listeners returns the shards of all attached listeners, by name and number. Its cost does not depend on the length of
// the log.
func (a *Admin) Listeners(ctx context.Context) ([]ListenerStatus, error) {
	var list []ListenerStatus
	err := a.db.InSnapshot(ctx, a.pool, func(q *queries.Queries) error {
		s, err := a.readShared(ctx, q)
		if err != nil {
			return err
		}
		list, err = readListeners(ctx, q, s)
		return err
	})
	if err != nil {
		return nil, a.db.Wrap("list listeners", err)
	}
	return list, nil
}

func readListeners(ctx context.Context, q *queries.Queries, in shared) ([]ListenerStatus, error) {
	rows, err := q.ListenerList(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]ListenerStatus, len(rows))
	for i, r := range rows {
		s := statusOf(r)
		for _, p := range in.alive {
			if p.Kind == ProcessListener && p.Name == s.Listener {
				s.Processes = append(s.Processes, p)
			}
		}
		for _, p := range in.pauses {
			if p.Listener == s.Listener {
				s.Pauses = append(s.Pauses, p)
			}
		}
		list[i] = s
	}
	for i := 0; i < len(list); {
		end, blocked := i, false
		for ; end < len(list) && list[end].Listener == list[i].Listener; end++ {
			blocked = blocked || list[end].Attempts > 0
		}
		if blocked {
			if err := fillHeads(ctx, q, list[i:end]); err != nil {
				return nil, err
			}
		}
		i = end
	}
	stops, err := q.ListenerStops(ctx, parkedHeads)
	if err != nil {
		return nil, err
	}
	for _, r := range stops {
		for i := range list {
			if list[i].Listener == r.Listener && list[i].Shard == int(r.Shard) {
				list[i].stopsAt(TopicVersion{Topic: r.Namespace + "/" + r.Topic, Version: int(r.Version)})
			}
		}
	}
	return list, nil
}

// parkedHeads is how many parked events of a shard are looked at for versions that nobody knows.
const parkedHeads = 1000

// stopsAt adds v to the versions that nobody handles, unless one of the processes knows it, or none reads the topic.
func (s *ListenerStatus) stopsAt(v TopicVersion) {
	read := false
	for _, p := range s.Processes {
		known, reads := p.Topics[v.Topic]
		if reads && known.Version >= v.Version {
			return
		}
		read = read || reads
	}
	if read {
		s.UnhandledVersions = append(s.UnhandledVersions, v)
	}
}

// fillHeads fills in Head of the shards of one listener.
func fillHeads(ctx context.Context, q *queries.Queries, shards []ListenerStatus) error {
	rows, err := q.ListenerHead(ctx, queries.ListenerHeadParams{
		EventLimit: 1, Blocked: true, Listener: shards[0].Listener,
	})
	if err != nil {
		return err
	}
	for _, r := range rows {
		for i := range shards {
			if shards[i].Shard == int(r.Shard) && shards[i].Attempts > 0 {
				shards[i].Head = uuid.NullUUID{UUID: r.ID.Bytes, Valid: true}
			}
		}
	}
	return nil
}

func statusOf(r queries.ListenerListRow) ListenerStatus {
	s := ListenerStatus{
		Listener: r.Listener, Shard: int(r.Shard), Shards: int(r.Shards), ReshardTo: int(r.ReshardTo), Paused: r.Paused,
		Position: r.Position, Unread: r.Unread, Lag: max(microseconds(r.LagUs), 0), MaxLag: microseconds(r.MaxLagUs),
		Attempts: int(r.RetryCount), RetryAfter: r.RetryAfter.Time.UTC(), LastError: r.LastError,
		DeadLetters: r.DeadLetters, ParkedKeys: r.ParkedKeys, ParkedEvents: r.ParkedEvents,
		AttachedAt: r.CreatedAt.Time.UTC(), AdvancedAt: r.AdvancedAt.Time.UTC(), State: ListenerIdle,
	}
	if r.Leased {
		s.Holder, s.LeaseUntil = uuid.NullUUID{UUID: r.LeaseBy.Bytes, Valid: true}, r.LeaseUntil.Time.UTC()
	}
	s.Alarm = r.Restored || s.MaxLag > 0 && s.Lag > s.MaxLag
	work := r.Running || s.Unread > 0
	switch {
	case r.Restored:
		s.State = ListenerRestored
	case r.Paused:
		s.State = ListenerPaused
	case s.Attempts > 0:
		s.State = ListenerBlocked
	case s.MaxLag > 0 && s.Lag > s.MaxLag:
		s.State = ListenerLagging
	case s.ReshardTo > 0:
		s.State = ListenerResharding
	case work && r.Leased:
		s.State = ListenerRunning
	case work:
		s.State = ListenerWaiting
	}
	return s
}

func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// DetachReport says what Detach deleted.
type DetachReport struct {
	Shards int
	// Parked counts the deleted parked events, which will not be tried again. Unread events are not counted: they stay
	// in the log for the other listeners.
	Parked int64
}

// Detach deletes the listener's cursors and parked events, and ends its pause. Its dead letters stay for their
// retention. Events of the log are no longer kept for it. A process that still runs it ends with an error that says so.
// A process that is started later attaches it again, at the start that the YAML sets.
func (a *Admin) Detach(ctx context.Context, name string) (DetachReport, error) {
	const what = "detach listener"
	var r DetachReport
	act, err := a.actor(what)
	if err != nil {
		return r, err
	}
	err = a.locked(ctx, what, func(q *queries.Queries) error {
		if err := requireAttached(ctx, q, name); err != nil {
			return err
		}
		shards, err := q.ListenerDetach(ctx, name)
		if err != nil {
			return err
		}
		r.Shards = int(shards)
		if r.Parked, err = q.ParkedDetach(ctx, name); err != nil {
			return err
		}
		if _, err = q.PauseEnd(ctx, pauseEndOf(Scope{Listener: name})); err != nil {
			return err
		}
		return act.audit(ctx, q, "detach", auditScope{Listener: name, Shards: r.Shards}, r.Parked)
	})
	if err != nil {
		return DetachReport{}, err
	}
	a.wakeListeners(ctx)
	return r, nil
}

// requireAttached returns an error unless the listener is attached.
func requireAttached(ctx context.Context, q *queries.Queries, name string) error {
	names, err := q.ListenerNames(ctx)
	if err != nil {
		return err
	}
	if slices.Contains(names, name) {
		return nil
	}
	return &UnknownListenerError{Name: name, Known: names}
}

// requireMovable is requireAttached, and also returns ErrRestored if the cursors hold xids of another cluster, so that
// they cannot be moved.
func requireMovable(ctx context.Context, q *queries.Queries, name string) error {
	if err := requireAttached(ctx, q, name); err != nil {
		return err
	}
	reg, err := q.ListenerRegistration(ctx, name)
	if err == nil && reg.Restored {
		err = outbox.ErrRestored
	}
	return err
}

var errPreview = errors.New("rolled back: this was a preview")

// adminTries limits how often an operation is repeated because a concurrent change was faster.
const adminTries = 10

// locked runs call under the lock of the schema's cursors, and repeats it after a deadlock. In a preview everything is
// rolled back.
func (a *Admin) locked(ctx context.Context, what string, call func(*queries.Queries) error) error {
	return a.retried(func() error {
		return a.db.WithCursorLock(ctx, a.pool, what, func(q *queries.Queries) error {
			return cmp.Or(call(q), a.endPreview())
		})
	})
}

// retried runs a transaction, and repeats it after a deadlock.
func (a *Admin) retried(transaction func() error) error {
	for tries := 1; ; tries++ {
		err := transaction()
		switch {
		case errors.Is(err, errPreview):
			return nil
		case tries < adminTries && collided(err):
		default:
			return err
		}
	}
}

func (a *Admin) endPreview() error {
	if a.preview {
		return errPreview
	}
	return nil
}

// collided reports whether PostgreSQL has aborted a transaction in favour of another.
func collided(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40P01" || pg.Code == "40001")
}

// wakeListeners wakes sleeping listeners. Polling covers a missed wake-up.
func (a *Admin) wakeListeners(ctx context.Context) {
	if !a.preview {
		_ = a.db.Each(a.pool).BellRing(ctx, bell.OfLog(a.db).Channel)
	}
}

// eventOf returns an event from its columns, without its payload.
func eventOf(e outbox.Event, id, tenant pgtype.UUID, headers []byte) outbox.Event {
	e.ID, e.Headers = id.Bytes, pgvalue.Headers(headers)
	e.TenantID = uuid.NullUUID{UUID: tenant.Bytes, Valid: tenant.Valid}
	return e
}
