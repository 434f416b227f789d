package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// AuditFilter selects entries of the audit. Its zero value selects all. An entry must match every field that is set.
type AuditFilter struct {
	// Who is exactly what the entry says.
	Who string
	// Action is one of replay, discard, pause, resume, skip, rewind, detach, rebase, prune, limit, limit-reset, enqueue, forget,
	// forget-process and reseal.
	Action string
	// Since and Until bound the time of the act: not before Since, and before Until. Zero means no bound.
	Since, Until time.Time
}

// AuditEntry is one act of an operator.
type AuditEntry struct {
	// No numbers the entries. It grows in about the order of At.
	No int64     `json:"no"`
	At time.Time `json:"at"`
	// Who did it: Act.Who or that of Admin.As. Otherwise it is "database user" and the name of the user.
	Who    string `json:"who"`
	Action string `json:"action"`
	Why    string `json:"why,omitempty"` // "" if nobody said why
	// Scope says in words what it was done to, for example "jobs/mail, error contains "refused"".
	Scope string `json:"scope"`
	// Filter is the same as a JSON object, as it was recorded.
	Filter json.RawMessage `json:"filter"`
	// Events is how many events it changed: dead letters that were replayed or discarded, the event that was skipped,
	// parked events that a detach deleted, events that a rewind has put before the listener, or that a rebase or a prune
	// went through, that a forget has deleted, or rows whose payload was sealed again. A pause or a limit changes none.
	Events int64 `json:"events"`
}

// AuditPage is a part of the audit.
type AuditPage struct {
	Entries []AuditEntry `json:"entries"`
	// Next is the Page.After of the next page; "" means that this is the last one.
	Next string `json:"next,omitempty"`
}

// Audit returns a page of what operators did, the latest first. Nothing deletes entries. A page without a filter reads
// little; otherwise one entry after another is compared with it.
func (a *Admin) Audit(ctx context.Context, f AuditFilter, page Page) (AuditPage, error) {
	const what = "list audit"
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return AuditPage{}, fmt.Errorf("%s: %w", what, argumentError("AuditFilter", "Since is not before Until"))
	}
	limit, err := page.limit()
	if err != nil {
		return AuditPage{}, fmt.Errorf("%s: %w", what, err)
	}
	before := int64(math.MaxInt64)
	if page.After != "" {
		if before, err = strconv.ParseInt(page.After, 10, 64); err != nil || before < 1 {
			return AuditPage{}, fmt.Errorf("%s: %w", what, argumentError("Page", "After is not the Next of a page"))
		}
	}
	rows, err := a.db.Each(a.pool).AuditList(ctx, queries.AuditListParams{
		BeforeNo: before, Who: f.Who, Act: f.Action, Since: bound(f.Since), Until: bound(f.Until),
		EntryLimit: int32(limit + 1),
	})
	if err != nil {
		return AuditPage{}, a.db.Wrap(what, err)
	}
	var p AuditPage
	if len(rows) > limit {
		rows = rows[:limit]
		p.Next = strconv.FormatInt(rows[limit-1].No, 10)
	}
	for _, r := range rows {
		p.Entries = append(p.Entries, AuditEntry{
			No: r.No, At: r.At.Time.UTC(), Who: r.Who, Action: r.Act, Why: r.Why, Scope: scopeText(r.Scope), Filter: r.Scope,
			Events: r.Events,
		})
	}
	return p, nil
}

// auditScope is the column scope of the table audit: what an act was done to.
type auditScope struct {
	Namespace string      `json:"namespace,omitempty"`
	Topic     string      `json:"topic,omitempty"`
	Topics    []string    `json:"topics,omitempty"` // of a prune, by full name
	Listener  string      `json:"listener,omitempty"`
	Listeners []string    `json:"listeners,omitempty"` // of a rebase
	Consumer  string      `json:"consumer,omitempty"`
	TenantID  *uuid.UUID  `json:"tenant_id,omitempty"`
	Key       string      `json:"key,omitempty"`
	ID        *uuid.UUID  `json:"id,omitempty"` // the event of a skip or of an edit
	IDs       []uuid.UUID `json:"ids,omitempty"`
	MoreIDs   int         `json:"more_ids,omitempty"`
	Selected  []uuid.UUID `json:"selected,omitempty"` // the events that a filter without ids has selected, if they are few
	Since     *time.Time  `json:"since,omitempty"`
	Until     *time.Time  `json:"until,omitempty"` // of a pause, when it ends
	To        *time.Time  `json:"to,omitempty"`    // of a rewind
	Start     bool        `json:"start,omitempty"` // of a rewind to the start of the log
	Error     string      `json:"error,omitempty"`
	Group     string      `json:"group,omitempty"`
	Limit     int         `json:"limit,omitempty"`
	Shards    int         `json:"shards,omitempty"` // of a detach
	Edited    bool        `json:"edited,omitempty"`
	Process   string      `json:"process,omitempty"` // one that is gone
	// Of a forget: a tenant or an entity, and how many rows of all tables were deleted. TenantID and EntityID are there
	// until it has ended.
	Forgot      string `json:"forgot,omitempty"`
	EntityType  string `json:"entity_type,omitempty"`
	EntityID    string `json:"entity_id,omitempty"`
	Undelivered bool   `json:"undelivered,omitempty"`
	Processed   bool   `json:"processed,omitempty"`
	AnyTenant   bool   `json:"any_tenant,omitempty"`
	Rows        int64  `json:"rows,omitempty"`
	// Forgotten says that a forget has removed the tenant, keys, ids and texts of this scope.
	Forgotten bool `json:"forgotten,omitempty"`
	// Of a limit: which one, and what it allows from then on.
	Per         string `json:"per,omitempty"`
	Concurrency int    `json:"concurrency,omitempty"`
	Rate        string `json:"rate,omitempty"`
}

// scopeText says in words what the column scope says. It returns a text of another form, which somebody has written by
// hand, as it is.
func scopeText(column json.RawMessage) string {
	var s auditScope
	if json.Unmarshal(column, &s) != nil {
		return string(column)
	}
	if text := s.String(); text != "" || string(column) == "{}" {
		return cmp.Or(text, "everything")
	}
	return string(column)
}

// String says in words what s selects; "" means everything.
func (s auditScope) String() string {
	if s.Forgot != "" {
		return s.forgetText()
	}
	subject := Scope{Namespace: s.Namespace, Topic: s.Topic}
	if s.TenantID != nil {
		subject.TenantID = uuid.NullUUID{UUID: *s.TenantID, Valid: true}
	}
	var parts []string
	add := func(set bool, format string, args ...any) {
		if set {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	at := func(t *time.Time) string {
		if t == nil {
			return ""
		}
		return t.UTC().Format(time.RFC3339)
	}
	add(s.Listener != "", "listener %s", s.Listener)
	add(s.Consumer != "", "consumer %s", s.Consumer)
	add(subject != Scope{}, "%s", subject)
	add(s.Per != "", "per %s", s.Per)
	add(s.Concurrency > 0, "concurrency %d", s.Concurrency)
	add(s.Rate != "", "rate %s", s.Rate)
	add(len(s.Topics) > 0, "%s", strings.Join(s.Topics, ", "))
	add(len(s.Listeners) > 0, "listeners %s", strings.Join(s.Listeners, ", "))
	add(s.ID != nil, "event %v", s.ID)
	switch n := len(s.IDs) + s.MoreIDs; {
	case n == 1 && len(s.IDs) == 1:
		add(true, "event %s", s.IDs[0])
	default:
		add(n > 0, "%d events", n)
	}
	add(s.Key != "", "key %s", s.Key)
	add(s.Error != "", "error contains %q", s.Error)
	add(s.Group != "", "group %s", s.Group)
	add(s.Since != nil, "since %s", at(s.Since))
	add(s.Until != nil, "until %s", at(s.Until))
	add(s.To != nil, "to %s", at(s.To))
	add(s.Start, "to the start of the log")
	add(s.Limit > 0, "at most %d", s.Limit)
	add(s.Edited, "with another payload")
	add(s.Process != "", "%s", s.Process)
	add(s.Forgotten, "what else it was has been forgotten")
	return strings.Join(parts, ", ")
}

// forgetText says in words what a forget was about.
func (s auditScope) forgetText() string {
	text := "a tenant"
	if s.Forgot == "entity" {
		text = "an entity " + s.EntityType
	}
	text += fmt.Sprintf(", %d rows", s.Rows)
	if scope := s.forgetScope(); scope.TenantID.Valid || scope.EntityID != "" {
		text += "; it has not ended: " + scope.String()
	}
	return text
}

// forgetScope is the scope of a forget that has not ended.
func (s auditScope) forgetScope() ForgetScope {
	scope := ForgetScope{EntityID: s.EntityID, Undelivered: s.Undelivered, Processed: s.Processed, AnyTenant: s.AnyTenant}
	if s.EntityID != "" {
		scope.EntityType = s.EntityType
	}
	if s.TenantID != nil {
		scope.TenantID = uuid.NullUUID{UUID: *s.TenantID, Valid: true}
	}
	return scope
}

// sameForget reports whether s and o are of forgets of the same tenant or entity.
func (s auditScope) sameForget(o auditScope) bool {
	x, y := s.forgetScope(), o.forgetScope()
	return x.TenantID == y.TenantID && x.EntityType == y.EntityType && x.EntityID == y.EntityID
}

// As returns an Admin whose acts leave rows in the table audit with who and why, for example a user name and a reason.
// Skip, Rewind, Detach, Rebase and Prune, which take no Act, record the user of the database without it. An Act with an
// empty Who or Why takes that of As.
func (a *Admin) As(who, why string) *Admin {
	b := *a
	b.who, b.why = who, why
	return &b
}

// actAs completes act with what As and Preview have set.
func (a *Admin) actAs(act Act) Act {
	act.DryRun = act.DryRun || a.preview
	act.Who, act.Why = cmp.Or(act.Who, a.who), cmp.Or(act.Why, a.why)
	return act
}

// actor returns the Act of a method that takes none. Its Who may be empty: then the database names its user.
func (a *Admin) actor(what string) (Act, error) {
	act := a.actAs(Act{})
	texts := act
	texts.Who = cmp.Or(texts.Who, "the user of the database")
	if err := texts.validate(); err != nil {
		return Act{}, fmt.Errorf("%s: %w", what, err)
	}
	return act, nil
}

// limit returns how many entries the page has at most.
func (p Page) limit() (int, error) {
	limit := cmp.Or(p.Limit, defaultPage)
	if limit < 0 || limit > maxPage {
		return 0, argumentError("Page", "Limit %d is not from 1 to %d", limit, maxPage)
	}
	return limit, nil
}

// moment is a time in an auditScope.
func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// audit records that act did what to n events of s. q is in the transaction that does it.
func (act Act) audit(ctx context.Context, q *queries.Queries, what string, s auditScope, n int64) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return q.AuditInsert(ctx, queries.AuditInsertParams{Who: act.Who, Act: what, Why: act.Why, Scope: text, Events: n})
}

// auditPart records, in the transaction of q, that one of several transactions of act has changed n events. no is what
// the first one returned, and 0 before. busy is how long the next one may take to come, and 0 if this is the last one.
func (act Act) auditPart(
	ctx context.Context, q *queries.Queries, no int64, what string, s auditScope, n int64, busy time.Duration,
) (int64, error) {
	var next pgtype.Interval
	if busy > 0 {
		next = pgvalue.Interval(busy)
	}
	if no != 0 {
		return no, q.AuditAdd(ctx, queries.AuditAddParams{Events: n, No: no, Busy: next})
	}
	text, err := json.Marshal(s)
	if err != nil {
		return 0, err
	}
	return q.AuditStart(ctx, queries.AuditStartParams{
		Who: act.Who, Act: what, Why: act.Why, Scope: text, Events: n, Busy: next,
	})
}
