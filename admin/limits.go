package admin

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/turn"
	"github.com/outboxgen/outboxgen/outbox"
)

// LimitScope names a limit of a topic.
type LimitScope struct {
	// Namespace and Topic are names as in the YAML.
	Namespace string `json:"namespace"`
	Topic     string `json:"topic"`
	// Per is the key of the limit as in the YAML: tenant, destination or a template, and "" for the limit of the topic.
	Per string `json:"per"`
}

// String returns the scope in words, for example "jobs/mail" or "jobs/mail per tenant".
func (s LimitScope) String() string {
	name := s.Namespace + "/" + s.Topic
	if s.Per != "" {
		name += " per " + s.Per
	}
	return name
}

func (s LimitScope) validate() error {
	if s.Namespace == "" || s.Topic == "" {
		return argumentError("LimitScope", "limit scope needs a namespace and a topic")
	}
	return nil
}

// LimitValue is what a limit allows.
type LimitValue struct {
	// Concurrency is how many events of one key may be leased at any moment; 0 means any number.
	Concurrency int `json:"concurrency,omitempty"`
	// Rate bounds the starts of attempts of one key; the zero value means any number.
	Rate outbox.Rate `json:"rate,omitzero"`
}

// String returns the value in words, for example "concurrency 5, rate 10/1m".
func (v LimitValue) String() string {
	var parts []string
	if v.Concurrency > 0 {
		parts = append(parts, fmt.Sprintf("concurrency %d", v.Concurrency))
	}
	if v.Rate != (outbox.Rate{}) {
		parts = append(parts, "rate "+v.Rate.String())
	}
	return strings.Join(parts, ", ")
}

// or returns v with the fields of o where v has none.
func (v LimitValue) or(o LimitValue) LimitValue {
	if v.Concurrency == 0 {
		v.Concurrency = o.Concurrency
	}
	if v.Rate == (outbox.Rate{}) {
		v.Rate = o.Rate
	}
	return v
}

// full reports whether no event of a key may start.
func (v LimitValue) full(running, starts int64) bool {
	return v.Concurrency > 0 && running >= int64(v.Concurrency) || v.Rate.Events > 0 && starts >= int64(v.Rate.Events)
}

// LimitStatus is a limit, and how much of it is used.
type LimitStatus struct {
	LimitScope
	// Value is what it allows now: Set, and Declared where Set has nothing.
	Value LimitValue `json:"value"`
	// Declared is what the YAML of the process says that started last, at DeclaredAt.
	Declared   LimitValue `json:"declared"`
	DeclaredAt time.Time  `json:"declared_at"`
	// Set is what an operator has set; nil if nobody has.
	Set *LimitSetting `json:"set,omitempty"`
	// Keys are the keys that are in use: those of which something runs or waits, or has started in the period of the
	// rate. Those come first of which most waits. A limit without Per has one key, which is "".
	Keys []LimitUse `json:"keys"`
	// Partial reports that there was too much to count: Keys misses some, or Waiting is more than they say.
	Partial bool `json:"partial,omitempty"`
}

// LimitSetting is what an operator has set in place of what is declared.
type LimitSetting struct {
	LimitValue
	At    time.Time `json:"at"`
	Until time.Time `json:"until,omitzero"` // zero means until it is reset
	Who   string    `json:"who"`
}

// LimitUse says how much of a limit a key uses.
type LimitUse struct {
	// Key is the tenant, the destination or the text of the template. The end of a long one is a hash.
	Key string `json:"key"`
	// Running is how many events are leased, and Starts how many attempts have started in the period of the rate.
	Running int64 `json:"running"`
	Starts  int64 `json:"starts"`
	// Full reports that no event may start now.
	Full bool `json:"full"`
	// FreeAt is when the rate allows the next start; zero if it allows one now.
	FreeAt time.Time `json:"free_at,omitzero"`
	// Waiting is how many events are due and not leased. They wait for this limit if it is full, otherwise for workers or
	// another limit. Oldest is when the first of them was due; zero if there are none.
	Waiting int64     `json:"waiting"`
	Oldest  time.Time `json:"oldest,omitzero"`
}

// Full returns the keys of which no event may start now, and how many events wait for them.
func (s LimitStatus) Full() (keys []LimitUse, waiting int64) {
	for _, k := range s.Keys {
		if k.Full {
			keys, waiting = append(keys, k), waiting+k.Waiting
		}
	}
	return keys, waiting
}

// UnknownLimitError says that a topic has no such limit. A limit is declared in the YAML, because events get their keys
// when they are enqueued.
type UnknownLimitError struct {
	Scope LimitScope
	Known []LimitScope // of the topic, or of all topics if it has none
}

// Error names the limit and the known ones.
func (e *UnknownLimitError) Error() string {
	if len(e.Known) == 0 {
		return fmt.Sprintf("unknown limit %s: no topic has limits; "+
			"a limit is declared in the YAML, by a process that runs the topic", e.Scope)
	}
	names := make([]string, len(e.Known))
	for i, k := range e.Known {
		names[i] = k.String()
	}
	return fmt.Sprintf("unknown limit %s: known limits are %s", e.Scope, strings.Join(names, "; "))
}

// Bounds of what LimitList reads: how many keys of each limit, and how many due events of each topic.
const maxLimitKeys, maxLimitDue = 10_000, 10_000

// Limits lists the limits of all topics, with the keys that are in use. It reads up to 10,000 keys of each limit, and the
// oldest 10,000 due events of each topic.
func (a *Admin) Limits(ctx context.Context) ([]LimitStatus, error) {
	all, err := limitsOf(ctx, a.db.Each(a.pool), LimitScope{}, false)
	return all, a.db.Wrap("list limits", err)
}

// TopicLimits lists the limits of a topic, with the keys that are in use, as Limits does.
func (a *Admin) TopicLimits(ctx context.Context, namespace, topic string) ([]LimitStatus, error) {
	all, err := limitsOf(ctx, a.db.Each(a.pool), LimitScope{Namespace: namespace, Topic: topic}, false)
	return all, a.db.Wrap("list limits", err)
}

func limitsOf(ctx context.Context, q *queries.Queries, s LimitScope, perGiven bool) ([]LimitStatus, error) {
	rows, err := q.LimitList(ctx, queries.LimitListParams{
		Namespace: s.Namespace, Topic: s.Topic, PerGiven: perGiven, Per: s.Per, KeyLimit: maxLimitKeys, DueLimit: maxLimitDue,
	})
	if err != nil {
		return nil, err
	}
	all := []LimitStatus{}
	for i := range rows {
		r := &rows[i]
		scope := LimitScope{Namespace: r.Namespace, Topic: r.Topic, Per: r.Per}
		if r.Head {
			all = append(all, limitOf(scope, r))
			continue
		}
		l := &all[slices.IndexFunc(all, func(l LimitStatus) bool { return l.LimitScope == scope })]
		l.Partial = l.Partial || r.More || len(l.Keys)+1 >= maxLimitKeys
		l.Keys = append(l.Keys, LimitUse{
			Key: turn.Key(r.Key), Running: r.Running, Starts: r.Starts, Waiting: r.Waiting, Oldest: r.Oldest.Time.UTC(),
			FreeAt: r.FreeAt.Time.UTC(),
			Full:   l.Value.full(r.Running, r.Starts),
		})
	}
	return all, nil
}

func limitOf(scope LimitScope, r *queries.LimitListRow) LimitStatus {
	value := func(concurrency, rate int32, us int64) LimitValue {
		return LimitValue{int(concurrency), outbox.Rate{Events: int(rate), Period: time.Duration(us) * time.Microsecond}}
	}
	l := LimitStatus{
		LimitScope: scope, Declared: value(r.Concurrency, r.Rate, r.PeriodUs), DeclaredAt: r.DeclaredAt.Time.UTC(), Keys: []LimitUse{},
	}
	l.Value = l.Declared
	if r.IsSet {
		l.Set = &LimitSetting{
			LimitValue: value(r.SetConcurrency, r.SetRate, r.SetPeriodUs), At: r.SetAt.Time.UTC(), Until: r.Until.Time.UTC(), Who: r.SetBy,
		}
		l.Value = l.Set.or(l.Declared)
	}
	return l
}

// LimitReport says what SetLimit or ResetLimit has changed.
type LimitReport struct {
	// Changed is what each limit allowed before and allows from now on. Reset leaves out limits that nobody had set.
	Changed []LimitChange `json:"changed"`
}

// LimitChange is the change of a limit.
type LimitChange struct {
	LimitScope
	Before LimitValue `json:"before"`
	After  LimitValue `json:"after"`
	// Over is how many keys have more running than After allows. Nothing is cancelled, and no event of them starts until less
	// runs.
	Over int `json:"over,omitempty"`
	// Keys is how many keys are in use, and Waiting how many of their events are due and not leased.
	Keys    int   `json:"keys"`
	Waiting int64 `json:"waiting"`
}

func changeOf(l LimitStatus, after LimitValue) LimitChange {
	c := LimitChange{LimitScope: l.LimitScope, Before: l.Value, After: after, Keys: len(l.Keys)}
	for _, k := range l.Keys {
		c.Waiting += k.Waiting
		if after.Concurrency > 0 && k.Running > int64(after.Concurrency) {
			c.Over++
		}
	}
	return c
}

// SetLimit sets what a limit of a topic allows, in place of what its YAML declares, until act.Until or until ResetLimit.
// Fields of v that are zero stay as they are. Claims follow at once, in all processes. What runs already is not
// cancelled: nothing starts until less runs than is allowed.
//
// SetLimit returns UnknownLimitError for a limit that the topic does not have.
func (a *Admin) SetLimit(ctx context.Context, s LimitScope, v LimitValue, act Act) (LimitReport, error) {
	act = a.actAs(act)
	err := errtext.Join(s.validate(), act.validate())
	if v == (LimitValue{}) {
		err = errtext.Join(err, argumentError("LimitValue", "limit value is empty: give a concurrency, a rate or both"))
	} else if wrong := outbox.CheckLimits([]outbox.Limit{{Per: s.Per, Concurrency: v.Concurrency, Rate: v.Rate}}); wrong != nil {
		err = errtext.Join(err, argumentError("LimitValue", "%v", wrong))
	}
	if err != nil {
		return LimitReport{}, fmt.Errorf("set limit: %w", err)
	}
	var r LimitReport
	err = a.acting(ctx, "set limit "+s.String(), act, func(q *queries.Queries) error {
		limits, err := limitsOf(ctx, q, s, true)
		if err != nil {
			return err
		}
		if len(limits) == 0 {
			return unknownLimit(ctx, q, s)
		}
		now := v
		if limits[0].Set != nil {
			now = now.or(limits[0].Set.LimitValue)
		}
		r = LimitReport{[]LimitChange{changeOf(limits[0], now.or(limits[0].Declared))}}
		_, err = q.LimitSet(ctx, queries.LimitSetParams{
			Namespace: s.Namespace, Topic: s.Topic, Per: s.Per, Concurrency: int32(min(v.Concurrency, math.MaxInt32)),
			Rate: int32(min(v.Rate.Events, math.MaxInt32)), PeriodUs: v.Rate.Period.Microseconds(),
			Until: pgvalue.Time(act.Until), Who: act.Who,
		})
		if err != nil {
			return err
		}
		return act.audit(ctx, q, "limit", s.record(v, act.Until), 0)
	})
	return a.limitChanged(ctx, s, act, r, err)
}

// ResetLimit ends what operators have set, so that the limits are again what the YAML declares: of one limit, or of all
// limits of the topic if every is set. Resetting what nobody has set changes nothing and is not an error.
//
// ResetLimit returns UnknownLimitError for a limit that the topic does not have.
func (a *Admin) ResetLimit(ctx context.Context, s LimitScope, every bool, act Act) (LimitReport, error) {
	act = a.actAs(act)
	if err := errtext.Join(s.validate(), act.validate()); err != nil {
		return LimitReport{}, fmt.Errorf("reset limit: %w", err)
	}
	var r LimitReport
	err := a.acting(ctx, "reset limit "+s.String(), act, func(q *queries.Queries) error {
		limits, err := limitsOf(ctx, q, s, !every)
		if err != nil {
			return err
		}
		if len(limits) == 0 {
			return unknownLimit(ctx, q, s)
		}
		r = LimitReport{Changed: []LimitChange{}}
		for _, l := range limits {
			if l.Set != nil {
				r.Changed = append(r.Changed, changeOf(l, l.Declared))
			}
		}
		if len(r.Changed) == 0 {
			return nil
		}
		_, err = q.LimitReset(ctx, queries.LimitResetParams{
			Namespace: s.Namespace, Topic: s.Topic, PerGiven: !every, Per: s.Per,
		})
		if err != nil {
			return err
		}
		for _, c := range r.Changed {
			if err := act.audit(ctx, q, "limit-reset", c.record(c.After, time.Time{}), 0); err != nil {
				return err
			}
		}
		return nil
	})
	return a.limitChanged(ctx, s, act, r, err)
}

func (a *Admin) limitChanged(ctx context.Context, s LimitScope, act Act, r LimitReport, err error) (LimitReport, error) {
	if err != nil {
		return LimitReport{}, err
	}
	if !act.DryRun {
		a.wake(ctx, Scope{Namespace: s.Namespace, Topic: s.Topic})
	}
	return r, nil
}

func unknownLimit(ctx context.Context, q *queries.Queries, s LimitScope) error {
	e := &UnknownLimitError{Scope: s}
	for _, within := range []LimitScope{{Namespace: s.Namespace, Topic: s.Topic}, {}} {
		limits, err := limitsOf(ctx, q, within, false)
		if err != nil {
			return err
		}
		for _, l := range limits {
			e.Known = append(e.Known, l.LimitScope)
		}
		if len(e.Known) > 0 {
			break
		}
	}
	return e
}

func (s LimitScope) record(v LimitValue, until time.Time) auditScope {
	return auditScope{
		Namespace: s.Namespace, Topic: s.Topic, Per: s.Per, Concurrency: v.Concurrency, Rate: v.Rate.String(), Until: moment(until),
	}
}
