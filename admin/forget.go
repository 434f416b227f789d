package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/outbox"
)

// ForgetScope says whom or what Forget is about: a tenant, an entity, or an entity of a tenant.
type ForgetScope struct {
	// TenantID is the owner of what is forgotten.
	TenantID uuid.NullUUID
	// EntityType and EntityID are those of an entity, like "order" and "4711". Both are set, or neither.
	EntityType, EntityID string
	// AnyTenant forgets the entity of every tenant. Without it and without TenantID, it must belong to one tenant.
	AnyTenant bool
	// Undelivered also deletes what is not delivered yet. Without it, Forget does nothing if there is any.
	Undelivered bool
	// Processed also deletes what consumer groups have recorded of the events, in the table processed_events: then an
	// event that a broker delivers again is applied again. Without it these rows stay for their retention. They have the
	// random id of an event, and nothing else of it.
	Processed bool
}

// String returns the scope in words, for example "entity order/4711 of tenant 6f1f...".
func (s ForgetScope) String() string {
	var parts []string
	if s.EntityType != "" {
		parts = append(parts, "entity "+s.EntityType+"/"+s.EntityID)
	}
	if s.TenantID.Valid {
		parts = append(parts, "tenant "+s.TenantID.UUID.String())
	}
	return strings.Join(parts, " of ")
}

func (s ForgetScope) validate() error {
	switch {
	case !s.TenantID.Valid && s.EntityType == "" && s.EntityID == "":
		return argumentError("ForgetScope", "neither a tenant nor an entity is named")
	case s.TenantID.Valid && s.TenantID.UUID == uuid.Nil:
		return argumentError("ForgetScope", "the tenant is the zero UUID")
	case (s.EntityType == "") != (s.EntityID == ""):
		return argumentError("ForgetScope", "an entity has a type and an id, like order/4711")
	case s.AnyTenant && s.EntityType == "":
		return argumentError("ForgetScope", "AnyTenant is for an entity")
	case s.AnyTenant && s.TenantID.Valid:
		return argumentError("ForgetScope", "AnyTenant and a tenant exclude each other")
	}
	for _, text := range []string{s.EntityType, s.EntityID} {
		if len(text) > outbox.MaxKeyBytes || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return argumentError("ForgetScope", "the type and the id of an entity are UTF-8 of up to %d bytes", outbox.MaxKeyBytes)
		}
	}
	return nil
}

// ForgetReport says what Forget has found, and what it has deleted.
type ForgetReport struct {
	// Topics counts the events by topic, by name.
	Topics []ForgetTopic `json:"topics"`
	// Tables counts the rows by table, those of which there are any.
	Tables []ForgetTable `json:"tables"`
	// Undelivered counts what is not delivered yet: events that are queued, that some listener has not passed or has
	// parked, and messages that a consumer group tries again. InFlight of them are being handled now. Listed are the
	// first of them.
	Undelivered int64               `json:"undelivered"`
	InFlight    int64               `json:"in_flight"`
	Listed      []ForgetUndelivered `json:"listed"`
	// Refused says why Forget would not act, or has not: nil if it would. Each is a sentence.
	Refused []string `json:"refused"`
	// Reasons are the errors of Refused, in the same order: *SeveralTenantsError, *ReplayRunsError and *UndeliveredError.
	Reasons []error `json:"-"`
	// Resumed reports that this went on with a forget of the same scope that was broken off. In a dry run it reports that
	// there is one.
	Resumed bool `json:"resumed"`
	// Events is how many events were deleted, and Rows how many rows of all tables; 0 in a dry run.
	Events int64 `json:"events"`
	Rows   int64 `json:"rows"`
}

// ForgetTopic counts the events of a topic.
type ForgetTopic struct {
	Topic       string `json:"topic"` // "namespace/topic"
	Log         bool   `json:"log"`
	Events      int64  `json:"events"`
	Delivered   int64  `json:"delivered"` // of a log topic: passed by every listener
	Dead        int64  `json:"dead"`      // of a queue topic
	Undelivered int64  `json:"undelivered"`
}

// ForgetTable counts the rows of a table.
type ForgetTable struct {
	Table string `json:"table"`
	// Found is how many rows matched, and Deleted how many of them are deleted.
	Found   int64 `json:"found"`
	Deleted int64 `json:"deleted"`
	// Note says what is special about them, for example why they stay.
	Note string `json:"note,omitempty"`
}

// ForgetUndelivered is an event that is not delivered yet.
type ForgetUndelivered struct {
	ID    uuid.UUID `json:"id"`
	Topic string    `json:"topic"`
	// Where it waits, in words, for example "queue, in flight" or "parked by listener companion".
	Where string `json:"where"`
}

// maxForgetListed is how many undelivered events a ForgetReport lists.
const maxForgetListed = 20

// UndeliveredError says that Forget has left what is not delivered yet. Unless Deleted is set, it has done nothing.
type UndeliveredError struct {
	Count   int64
	Deleted bool // the rest was deleted: these have come meanwhile
}

// Error says what to do.
func (e *UndeliveredError) Error() string {
	what := fmt.Sprintf("%d events are not delivered yet", e.Count)
	if e.Count == 1 {
		what = "1 event is not delivered yet"
	}
	if e.Deleted {
		what += ", has come meanwhile and was left"
	}
	return what + ": wait until nothing is, or have it deleted too (--undelivered)"
}

// ReplayRunsError says that a replay runs whose events Forget would delete.
type ReplayRunsError struct {
	Who   string
	Since time.Time
}

// Error says who replays.
func (e *ReplayRunsError) Error() string {
	return fmt.Sprintf("a replay of %s runs since %s: wait for its end", e.Who, e.Since.UTC().Format(time.RFC3339))
}

// SeveralTenantsError says that an entity belongs to several tenants.
type SeveralTenantsError struct {
	Entity  string          // "order/4711"
	Tenants []uuid.NullUUID // the first of them; one that is not valid stands for events without a tenant
}

// Error names the tenants.
func (e *SeveralTenantsError) Error() string {
	var names []string
	for _, t := range e.Tenants {
		name := "no tenant"
		if t.Valid {
			name = t.UUID.String()
		}
		names = append(names, name)
	}
	return fmt.Sprintf("%s is an entity of several tenants (%s): name one (--tenant), or all (--any-tenant)", e.Entity,
		strings.Join(names, ", "))
}

// UnknownEntityError says that nothing is kept of an entity, and that no event has its type.
type UnknownEntityError struct {
	Type  string
	Known []string // the types that events have
}

// Error names the known types.
func (e *UnknownEntityError) Error() string {
	known := "no event has an entity"
	if len(e.Known) > 0 {
		known = "events have " + strings.Join(e.Known, ", ")
	}
	return fmt.Sprintf("unknown entity type %q: %s", e.Type, known)
}

// NotForgotten says, in sentences for people, what Forget does not reach.
func NotForgotten() []string {
	return []string{
		"Brokers keep what was published. Delete it there, or let their retention do it.",
		"Backups, replicas that lag, and archives of the write-ahead log keep the rows until they are too old.",
		"Consumers in other databases have an inbox of their own. Run forget there, too.",
		"What handlers and consumers have written into their own tables, and what they have logged or sent, is theirs.",
		"Payloads and texts of other tenants and entities may name somebody. Nobody looks into them.",
		"Sealed fields of a tenant that has a key of its own cannot be read anywhere once you destroy that key.",
	}
}

// Forget deletes what the tables of the outbox keep about a tenant or an entity: events of queue topics and of log topics
// with their state, dead letters, failures with their texts, what listeners have parked, what consumer groups keep in this
// database, the pauses of a tenant, and what the audit says of it. It reads all tables in pieces, by their primary keys; the
// events of an entity are found by an index.
//
// Forget does nothing, and returns an error, if something is not delivered yet and scope.Undelivered is not set
// (*UndeliveredError), if a replay runs that may have the same events (*ReplayRunsError), if an entity belongs to several
// tenants and none is named (*SeveralTenantsError), if no event has the type of the entity (*UnknownEntityError), and if
// the database was restored (outbox.ErrRestored). The report says in Refused what applies; in a dry run there is no error
// then.
//
// Each piece is a transaction of up to 500 events. What was deleted stays deleted if Forget ends early: Forget of the same
// scope goes on, and Doctor reports it until then. Any number of them may run at the same time. Dispatchers, listeners,
// consumers and Prune may run meanwhile. An event that is being handled is deleted under its handler, whose result changes
// nothing any more. A listener loses the lease of a shard whose open window has a deleted event, so what else it is handling
// is delivered again. Positions of listeners stay as they are: a deleted event is a gap in the log.
//
// An event that is enqueued meanwhile is deleted if Forget still comes by. So stop the enqueues first. The dedupe keys of
// deleted events are free again: an enqueue with the same key makes a new event.
//
// The audit has one entry for each forget. It names the tenant or the entity until the forget has ended, and then only the
// kind of the scope and how many rows were deleted. act.Why must not name it either. act.Limit and act.Rate must be 0.
func (a *Admin) Forget(ctx context.Context, scope ForgetScope, act Act) (ForgetReport, error) {
	const what = "forget"
	act = a.actAs(act)
	if err := errtext.Join(scope.validate(), act.validate()); err != nil {
		return ForgetReport{}, fmt.Errorf("%s: %w", what, err)
	}
	switch {
	case act.Limit != 0 || act.Rate != 0:
		return ForgetReport{}, fmt.Errorf("%s: %w", what, argumentError("Act", "Limit and Rate are not for Forget"))
	case scope.names(act.Why) || scope.names(act.Who):
		return ForgetReport{}, fmt.Errorf("%s: %w", what,
			argumentError("Act", "Who and Why stay in the audit: do not name the tenant or the entity there"))
	}
	f := &forgetting{Admin: a, scope: scope, act: act, found: make(map[string]int64), deleted: make(map[string]int64)}
	err := f.plan(ctx)
	refused := f.refusals()
	f.report.Reasons = refused
	for _, r := range refused {
		f.report.Refused = append(f.report.Refused, errtext.Line(r.Error()))
	}
	switch {
	case err != nil:
		return f.result(), a.db.Wrap(what, err)
	case act.DryRun:
		f.report.Resumed, err = f.open(ctx)
		return f.result(), a.db.Wrap(what, err)
	case len(refused) > 0:
		return f.result(), fmt.Errorf("%s: %w", what, errtext.Join(refused...))
	}
	err = f.run(ctx)
	return f.result(), a.db.Wrap(what, err)
}

// refusals are the reasons for which f does not act.
func (f *forgetting) refusals() (list []error) {
	if f.severalTenants != nil {
		list = append(list, f.severalTenants)
	}
	if f.replay != nil {
		list = append(list, f.replay)
	}
	if n := f.report.Undelivered; n > 0 && !f.scope.Undelivered {
		list = append(list, &UndeliveredError{Count: n})
	}
	return list
}

// result completes the report.
func (f *forgetting) result() ForgetReport {
	r := f.report
	r.Topics, r.Tables = []ForgetTopic{}, []ForgetTable{}
	for _, t := range f.topics {
		r.Topics = append(r.Topics, *t)
	}
	slices.SortFunc(r.Topics, func(x, y ForgetTopic) int {
		if c := cmp.Compare(x.Topic, y.Topic); c != 0 || x.Log == y.Log {
			return c
		}
		return 1
	})
	for _, name := range forgetTables {
		if f.found[name] == 0 && f.deleted[name] == 0 {
			continue
		}
		t := ForgetTable{Table: name, Found: f.found[name], Deleted: f.deleted[name]}
		switch {
		case name == "processed_events" && !f.scope.Processed:
			t.Note = "kept for their retention: a random id of an event each, so that a broker's copy is not applied again"
		case name == "audit":
			t.Note = "entries stay, without what names it"
		case name == "limit_usage":
			t.Note = "those that are in use are deleted by dispatchers when they are not"
		}
		r.Tables = append(r.Tables, t)
	}
	r.Listed, r.Refused = listed(r.Listed), listed(r.Refused)
	return r
}

// forgetTables are the tables in the order in which they are reported.
var forgetTables = []string{
	"events", "queue", "delivered", "log", "dead_letters", "listener_failures", "parked", "inbox_messages",
	"inbox_quarantined", "entity_versions", "processed_events", "pauses", "limit_usage", "audit",
}

// names reports whether text names whom or what s is about, as the audit is searched for it.
func (s ForgetScope) names(text string) bool {
	const other = `[^\pL\pN]`
	var found bool
	for _, of := range []ForgetScope{{TenantID: s.TenantID}, {EntityType: s.EntityType, EntityID: s.EntityID}} {
		if of.TenantID.Valid || of.EntityType != "" {
			found = found || regexp.MustCompile("(?i)"+of.expression(other, regexp.QuoteMeta)).MatchString(text) // always valid
		}
	}
	return found
}

// tellingID is the length from which the id of an entity is looked for without its type. A shorter one may be anything.
const tellingID = 8

// pattern is a regular expression of PostgreSQL for texts that name whom or what s is about.
func (s ForgetScope) pattern() string { return s.expression("[^[:alnum:]]", quotePattern) }

// expression is a regular expression for texts that name the entity of s, or else the tenant. other matches what is neither
// a letter nor a digit.
func (s ForgetScope) expression(other string, quote func(string) string) string {
	if s.EntityType == "" {
		return strings.ReplaceAll(s.TenantID.UUID.String(), "-", "-?")
	}
	edge, end := "(^|"+other+")", "("+other+"|$)"
	names := [][2]string{{s.EntityType, s.EntityID}}
	if inJSON := [2]string{jsonText(s.EntityType), jsonText(s.EntityID)}; inJSON != names[0] {
		names = append(names, inJSON)
	}
	var texts []string
	for _, name := range names {
		id := quote(name[1]) + end
		texts = append(texts, edge+quote(name[0])+other+"{1,2}"+id)
		if len(s.EntityID) >= tellingID {
			texts = append(texts, edge+id)
		}
	}
	return strings.Join(texts, "|")
}

// jsonText returns text as it stands in a JSON string.
func jsonText(text string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // PostgreSQL does not
	_ = e.Encode(text)     // a string has a JSON form
	return strings.TrimSuffix(strings.TrimPrefix(b.String(), `"`), "\"\n")
}

// quotePattern returns a regular expression of PostgreSQL that matches text.
func quotePattern(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r < utf8.RuneSelf && !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9') {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// auditScope is what the entry of the audit says of a forget. At its end tenant_id and entity_id are removed.
func (s ForgetScope) auditScope() auditScope {
	scope := auditScope{
		Forgot: "tenant", EntityType: s.EntityType, EntityID: s.EntityID,
		Undelivered: s.Undelivered, Processed: s.Processed, AnyTenant: s.AnyTenant,
	}
	if s.EntityType != "" {
		scope.Forgot = "entity"
	}
	if s.TenantID.Valid {
		scope.TenantID = &s.TenantID.UUID
	}
	return scope
}
