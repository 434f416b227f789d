package admin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/postgres/bell"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// Scope is what Pause and Resume are about: a namespace, a topic, a tenant, or a listener. A tenant alone means its
// events of every queue topic; with a namespace or topic it means its events there.
type Scope struct {
	// Namespace and Topic are names as in the YAML. A Topic needs its Namespace.
	Namespace string `json:"namespace,omitempty"`
	Topic     string `json:"topic,omitempty"`
	// TenantID is the owner of the events; not valid means all of them.
	TenantID uuid.NullUUID `json:"tenant_id,omitzero"`
	// Listener is the name of a listener. No other field is set with it: a listener reads its topics in order, so it is
	// paused as a whole.
	Listener string `json:"listener,omitempty"`
}

// String returns the scope in words, for example "jobs/mail", "tenant 6f1f4b0e-... of jobs" or "listener companion".
func (s Scope) String() string {
	name := s.Namespace
	if s.Topic != "" {
		name += "/" + s.Topic
	}
	switch {
	case s.Listener != "":
		return "listener " + s.Listener
	case s.TenantID.Valid && name != "":
		return "tenant " + s.TenantID.UUID.String() + " of " + name
	case s.TenantID.Valid:
		return "tenant " + s.TenantID.UUID.String()
	}
	return name
}

func (s Scope) validate() error {
	switch {
	case s == Scope{}:
		return argumentError("Scope", "scope is empty: name a namespace, a topic, a tenant or a listener")
	case s.Listener != "" && s != Scope{Listener: s.Listener}:
		return argumentError("Scope", "scope has more than the listener %s: a listener is paused as a whole", s.Listener)
	case s.Topic != "" && s.Namespace == "":
		return argumentError("Scope", "scope has the topic %s without its namespace", s.Topic)
	case s.TenantID.Valid && s.TenantID.UUID == uuid.Nil:
		return argumentError("Scope", "scope has the zero UUID as its tenant")
	}
	return nil
}

// covers reports whether a pause of s stops everything that is in o.
func (s Scope) covers(o Scope) bool {
	return s.Listener == o.Listener &&
		(s.Namespace == "" || s.Namespace == o.Namespace) &&
		(s.Topic == "" || s.Topic == o.Topic) &&
		(!s.TenantID.Valid || s.TenantID == o.TenantID)
}

func (s Scope) record(until time.Time) auditScope {
	r := auditScope{Namespace: s.Namespace, Topic: s.Topic, Listener: s.Listener, Until: moment(until)}
	if s.TenantID.Valid {
		r.TenantID = &s.TenantID.UUID
	}
	return r
}

// Pause is a pause that has not ended.
type Pause struct {
	Scope
	// Since is when it began. Until is when it ends by itself; zero means never.
	Since time.Time `json:"since"`
	Until time.Time `json:"until,omitzero"`
	// Who has paused it, and Why.
	Who string `json:"who"`
	Why string `json:"why,omitempty"`
}

// UnknownTopicError says that there is no topic of that name, or no topic of that namespace: no process runs it, and no
// event of it is kept.
type UnknownTopicError struct {
	Name  string   // namespace or namespace/topic
	Known []string // the known queue topics
}

// Error names the topic and the known ones.
func (e *UnknownTopicError) Error() string {
	what := "topic"
	if !strings.Contains(e.Name, "/") {
		what = "namespace"
	}
	if len(e.Known) == 0 {
		return fmt.Sprintf("unknown %s %q: no queue topic runs or has events", what, e.Name)
	}
	return fmt.Sprintf("unknown %s %q: known queue topics are %s", what, e.Name, strings.Join(e.Known, ", "))
}

// LogTopicError says that a topic, or all topics of a namespace, are log topics, which cannot be paused: their
// listeners can.
type LogTopicError struct {
	Name      string
	Listeners []string // those that read it, or all if no process says what it reads
}

// Error names the listeners to pause instead.
func (e *LogTopicError) Error() string {
	what := "a log topic, which listeners read in order"
	if !strings.Contains(e.Name, "/") {
		what = "a namespace of log topics, which listeners read in order"
	}
	if len(e.Listeners) == 0 {
		return fmt.Sprintf("%s is %s: pause its listeners; none is attached", e.Name, what)
	}
	return fmt.Sprintf("%s is %s: pause its listeners instead: %s", e.Name, what, strings.Join(e.Listeners, ", "))
}

// Pause keeps dispatchers from claiming the events of a scope, or a listener from reading on. Running processes honour
// it within one PollInterval, and processes that start later immediately. Handlers that run finish, events that were
// claimed and not started are released, and no attempt is charged. Events can be enqueued meanwhile; they wait and are
// not pruned.
//
// A paused scope may be paused again: Act.Until, Act.Who and Act.Why replace what they were. Scopes are independent of
// each other: an event is delivered when no pause covers it. A namespace or a tenant means queue topics only.
//
// Pause returns UnknownListenerError or UnknownTopicError for a name that is not known, and LogTopicError for a log
// topic.
func (a *Admin) Pause(ctx context.Context, s Scope, act Act) error {
	act = a.actAs(act)
	if err := errtext.Join(s.validate(), act.validate()); err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	return a.acting(ctx, "pause "+s.String(), act, func(q *queries.Queries) error {
		if err := requireKnown(ctx, q, s); err != nil {
			return err
		}
		p := pauseEndOf(s)
		active, err := q.PauseSet(ctx, queries.PauseSetParams{
			Namespace: p.Namespace, Topic: p.Topic, TenantID: p.TenantID, Listener: p.Listener,
			Until: pgvalue.Time(act.Until), Who: act.Who, Why: act.Why,
		})
		switch {
		case err != nil:
			return err
		case !active:
			return fmt.Errorf("until %s has passed", act.Until.UTC().Format(time.RFC3339))
		}
		if err := q.PauseExpire(ctx); err != nil {
			return err
		}
		return act.audit(ctx, q, "pause", s.record(act.Until), 0)
	})
}

// ResumeReport says what Resume did, or would do in a dry run.
type ResumeReport struct {
	// Resumed is false if the scope itself was not paused.
	Resumed bool
	// Paused are the other pauses that cover the whole scope, so that it still waits.
	Paused []Pause
}

// Resume ends the pause of a scope and wakes the processes. Resuming what is not paused changes nothing and is not an
// error, except that an unknown listener is an UnknownListenerError.
func (a *Admin) Resume(ctx context.Context, s Scope, act Act) (ResumeReport, error) {
	act = a.actAs(act)
	if err := errtext.Join(s.validate(), act.validate()); err != nil {
		return ResumeReport{}, fmt.Errorf("resume: %w", err)
	}
	var r ResumeReport
	err := a.acting(ctx, "resume "+s.String(), act, func(q *queries.Queries) error {
		r = ResumeReport{}
		if s.Listener != "" {
			if err := requireAttached(ctx, q, s.Listener); err != nil {
				return err
			}
		}
		ended, err := q.PauseEnd(ctx, pauseEndOf(s))
		if err != nil {
			return err
		}
		r.Resumed = slices.Contains(ended, true)
		if err := q.PauseExpire(ctx); err != nil {
			return err
		}
		all, err := pausesOf(ctx, q)
		if err != nil {
			return err
		}
		for _, p := range all {
			if p.covers(s) {
				r.Paused = append(r.Paused, p)
			}
		}
		if !r.Resumed {
			return nil
		}
		return act.audit(ctx, q, "resume", s.record(time.Time{}), 0)
	})
	if err != nil {
		return ResumeReport{}, err
	}
	if r.Resumed && !act.DryRun {
		a.wake(ctx, s)
	}
	return r, nil
}

// Pauses lists the pauses that have not ended.
func (a *Admin) Pauses(ctx context.Context) ([]Pause, error) {
	all, err := pausesOf(ctx, a.db.Each(a.pool))
	return all, a.db.Wrap("list pauses", err)
}

func pausesOf(ctx context.Context, q *queries.Queries) ([]Pause, error) {
	rows, err := q.PauseList(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Pause, len(rows))
	for i, r := range rows {
		all[i] = Pause{
			Scope: Scope{Namespace: r.Namespace, Topic: r.Topic, Listener: r.Listener},
			Since: r.PausedAt.Time.UTC(), Who: r.Who, Why: r.Why,
		}
		if tenant := uuid.UUID(r.TenantID.Bytes); tenant != uuid.Nil {
			all[i].TenantID = uuid.NullUUID{UUID: tenant, Valid: true}
		}
		if r.Ends {
			all[i].Until = r.Until.Time.UTC()
		}
	}
	return all, nil
}

// pauseEndOf returns the key of the row of a scope.
func pauseEndOf(s Scope) queries.PauseEndParams {
	return queries.PauseEndParams{
		Namespace: s.Namespace, Topic: s.Topic, Listener: s.Listener,
		TenantID: pgtype.UUID{Bytes: s.TenantID.UUID, Valid: true}, // the zero UUID means all
	}
}

// acting runs call in one transaction, and repeats it when PostgreSQL has aborted it in favour of another. In a dry run
// everything is rolled back. The planner is free, because call reads whole tables.
func (a *Admin) acting(ctx context.Context, what string, act Act, call func(*queries.Queries) error) error {
	return a.retried(func() error {
		return a.db.Wrap(what, a.db.InTxPlanned(ctx, a.pool, func(q *queries.Queries) error {
			if err := call(q); err != nil || !act.DryRun {
				return err
			}
			return errPreview
		}))
	})
}

// requireKnown returns an error unless the listener of s is attached, or the namespace or topic of s is a queue topic
// of which something is known.
func requireKnown(ctx context.Context, q *queries.Queries, s Scope) error {
	switch {
	case s.Listener != "":
		return requireAttached(ctx, q, s.Listener)
	case s.Namespace == "":
		return nil
	}
	in := func(name string) bool {
		namespace, topic, _ := strings.Cut(name, "/")
		return namespace == s.Namespace && (s.Topic == "" || topic == s.Topic)
	}
	// for the names
	history, err := q.TopicHistory(ctx, queries.TopicHistoryParams{RateLimit: 1, RateOver: pgvalue.Interval(rateOver)})
	if err != nil {
		return err
	}
	known, isLog := []string{}, false
	for _, r := range history {
		known = append(known, r.Namespace+"/"+r.Topic)
	}
	for _, everywhere := range []bool{false, true} { // nearly always little reading suffices
		rows, err := q.TopicsKnown(ctx, everywhere)
		if err != nil {
			return err
		}
		for _, r := range rows {
			if r.Log {
				isLog = isLog || in(r.Name)
			} else {
				known = append(known, r.Name)
			}
		}
		if slices.ContainsFunc(known, in) {
			return nil
		}
	}
	slices.Sort(known)
	known = slices.Compact(known)
	name := Scope{Namespace: s.Namespace, Topic: s.Topic}.String()
	if !isLog {
		return &UnknownTopicError{Name: name, Known: known}
	}
	listeners, err := readersOf(ctx, q, in)
	if err != nil {
		return err
	}
	return &LogTopicError{Name: name, Listeners: listeners}
}

// readersOf returns the listeners that read one of the topics that in selects, or all if no process says what it reads.
func readersOf(ctx context.Context, q *queries.Queries, in func(topic string) bool) ([]string, error) {
	running, err := processesOf(ctx, q, DefaultGoneAfter)
	if err != nil {
		return nil, err
	}
	var listeners []string
	for _, p := range running {
		reads := slices.ContainsFunc(slices.Collect(maps.Keys(p.Topics)), in)
		if p.Kind == ProcessListener && reads && !slices.Contains(listeners, p.Name) {
			listeners = append(listeners, p.Name)
		}
	}
	if len(listeners) > 0 {
		return listeners, nil
	}
	return q.ListenerNames(ctx)
}

// wake wakes the sleeping processes that a scope concerns, which look for pauses then. Polling covers a missed wake-up.
func (a *Admin) wake(ctx context.Context, s Scope) {
	if s.Listener != "" {
		a.wakeListeners(ctx)
		return
	}
	q := a.db.Each(a.pool)
	namespaces := []string{s.Namespace}
	if s.Namespace == "" {
		running, err := processesOf(ctx, q, DefaultGoneAfter)
		if err != nil {
			return
		}
		namespaces = nil
		for _, p := range running {
			if p.Kind == ProcessDispatcher {
				namespaces = append(namespaces, p.Name)
			}
		}
		slices.SortFunc(namespaces, cmp.Compare[string])
		namespaces = slices.Compact(namespaces)
	}
	for _, namespace := range namespaces {
		_ = q.BellRing(ctx, bell.Of(a.db, namespace).Channel)
	}
}
