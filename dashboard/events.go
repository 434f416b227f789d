package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/tool/humantime"
	"github.com/outboxgen/outboxgen/outbox"
)

// filterFields are the parameters of a filter, as a form has them.
var filterFields = []string{
	"topic", "listener", "consumer", "tenant", "status", "key", "entity", "correlation", "id", "since", "until", "error",
	"group",
}

// filterOf reads a filter from a form.
func filterOf(form url.Values) (admin.Filter, error) {
	text := func(name string) string { return strings.TrimSpace(form.Get(name)) }
	f := admin.Filter{
		Listener: text("listener"), Consumer: text("consumer"), Status: admin.Status(text("status")), Key: text("key"),
		Error: form.Get("error"), Group: text("group"), Correlation: text("correlation"),
	}
	if entity := text("entity"); entity != "" {
		kind, id, _ := strings.Cut(entity, "/")
		if kind == "" || id == "" {
			return f, bad("entity: %q is not an entity: use its type and its id, like order/4711", entity)
		}
		f.Entity = outbox.Entity{Type: kind, ID: id}
	}
	f.Namespace, f.Topic, _ = strings.Cut(text("topic"), "/")
	if tenant := text("tenant"); tenant != "" {
		id, err := uuid.Parse(tenant)
		if err != nil {
			return f, bad("tenant: %q is not a valid UUID", tenant)
		}
		f.TenantID = uuid.NullUUID{UUID: id, Valid: true}
	}
	for _, id := range strings.FieldsFunc(text("id"), func(r rune) bool { return r == ',' || r == ' ' }) {
		parsed, err := uuid.Parse(id)
		if err != nil {
			return f, bad("id: %q is not a valid UUID", id)
		}
		f.IDs = append(f.IDs, parsed)
	}
	var err error
	if f.Since, err = momentOf("since", text("since")); err != nil {
		return f, err
	}
	f.Until, err = momentOf("until", text("until"))
	return f, err
}

// momentOf reads a time, or an age like 90m. It returns the zero time for "".
func momentOf(name, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, err := humantime.Parse(text, time.Now())
	if err != nil {
		return t, bad("%s: %v", name, err)
	}
	return t, nil
}

// filterForm is a filter as its form shows it.
type filterForm struct {
	Topic, Listener, Tenant, Status, Key, Entity, Correlation, ID, Since, Until, Error, Group string
	Topics, Listeners                                                                         []string // suggestions
	Statuses                                                                                  []admin.Status
}

func (p *Page) filterForm(form url.Values) filterForm {
	f := filterForm{
		Topic: form.Get("topic"), Listener: form.Get("listener"), Tenant: form.Get("tenant"), Status: form.Get("status"),
		Key: form.Get("key"), Entity: form.Get("entity"), Correlation: form.Get("correlation"), ID: form.Get("id"), Since: form.Get("since"), Until: form.Get("until"),
		Error: form.Get("error"), Group: form.Get("group"),
		Statuses: []admin.Status{
			admin.StatusPending, admin.StatusProcessing, admin.StatusDelivered, admin.StatusDead, admin.StatusParked,
			admin.StatusLogged,
		},
	}
	o := p.overview.get(context.Background(), readLimit, 0).value
	for _, t := range o.Topics {
		f.Topics = append(f.Topics, t.Name())
	}
	for _, t := range o.LogTopics {
		f.Topics = append(f.Topics, t.Name())
	}
	for _, l := range admin.SumShards(o.Listeners) {
		f.Listeners = append(f.Listeners, l.Listener)
	}
	return f
}

// eventsLimit is the number of events on a page.
const eventsLimit = 50

// searchTime is how long a page looks for events if a filter matches few.
const searchTime = 3 * time.Second

type eventsBody struct {
	Filter filterForm
	Events []admin.EventStatus
	Next   string // the URL of the next page
	First  string // the URL of the first page, if this is another one
	More   bool   // the search was cut off
}

func (p *Page) showEvents(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	filter, err := filterOf(query)
	if err != nil {
		p.fail(w, r, err)
		return
	}
	body := eventsBody{Filter: p.filterForm(query)}
	page := admin.Page{Limit: eventsLimit, After: query.Get("after")}
	for start := time.Now(); ; {
		found, err := p.ops.Events(r.Context(), filter, page)
		if err != nil {
			p.fail(w, r, err)
			return
		}
		body.Events = append(body.Events, found.Events...)
		page.Limit, page.After = eventsLimit-len(body.Events), found.Next
		if body.More = found.Next != "" && page.Limit > 0; !body.More || time.Since(start) > searchTime {
			break
		}
	}
	if page.After != "" {
		body.Next = p.view.path("events") + "?" + onlyFilter(query, "after", page.After)
	}
	if query.Get("after") != "" {
		body.First = p.view.path("events") + "?" + onlyFilter(query)
	}
	p.show(w, r, http.StatusOK, frame{
		Name: "events", Title: "Events", ReadAt: time.Now(), Done: p.doneText(query), Body: body,
	})
}

// onlyFilter returns the fields of a filter that are set, and more, as a query.
func onlyFilter(form url.Values, more ...string) string {
	out := url.Values{}
	for _, name := range filterFields {
		if v := form.Get(name); v != "" {
			out.Set(name, v)
		}
	}
	for i := 0; i+1 < len(more); i += 2 {
		out.Set(more[i], more[i+1])
	}
	return out.Encode()
}

// step is a line of an event's life.
type step struct {
	At   time.Time // zero if it is not known
	Kind string    // bad, warn, good or info
	Text string
	More string // an error
}

type eventBody struct {
	admin.EventDetail
	Tenant      string
	Life        []step
	HeaderNames []string
	Payload     string // indented JSON
	PayloadNote string // why there is none
	Trace       string // a URL

	ConsumerTexts, ActTexts []string
	Tree                    []node // of its chain; none if it is alone
	MoreOfChain             string // the URL of the rest
}

func (p *Page) showEvent(w http.ResponseWriter, r *http.Request) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		p.fail(w, r, bad("%q is not a valid event id", r.PathValue("id")))
		return
	}
	e, err := p.ops.Event(r.Context(), id)
	if err != nil {
		p.fail(w, r, err)
		return
	}
	body := eventBody{
		EventDetail: e, Life: lifeOf(e), HeaderNames: slices.Sorted(maps.Keys(e.Headers)),
		Trace: traceURL(p.cfg.TraceURL, e.Headers["traceparent"]),
	}
	if e.TenantID.Valid {
		body.Tenant = e.TenantID.UUID.String()
	}
	for _, c := range e.Consumers {
		body.ConsumerTexts = append(body.ConsumerTexts, consumerText(c))
	}
	for _, act := range e.Acts {
		body.ActTexts = append(body.ActTexts, actText(act))
	}
	var more bool
	if body.Tree, more, err = p.chainOf(r, &e); err != nil {
		p.fail(w, r, err)
		return
	}
	if more {
		body.MoreOfChain = p.matchOf(admin.Filter{Correlation: e.Chain()}).URL
	}
	body.Payload, body.PayloadNote = p.payloadOf(e.Name(), e.Version, e.Payload)
	p.show(w, r, http.StatusOK, frame{
		Name: "event", Title: "Event " + id.String(), Live: e.Status != admin.StatusDelivered, ReadAt: time.Now(),
		Done: p.doneText(r.URL.Query()), Body: body,
	})
}

// payloadLimit is the size up to which a payload is shown, in bytes: browsers are slow with more.
const payloadLimit = 1 << 20

// payloadOf returns what may be shown of the payload, or why nothing is.
func (p *Page) payloadOf(topic string, version int, payload json.RawMessage) (text, note string) {
	if p.cfg.Mask == nil {
		return "", "Not shown: the page does not know which fields are sensitive. Mask in its configuration tells it."
	}
	masked, ok := p.cfg.Mask(topic, version, payload)
	if !ok {
		return "", "Not shown: it is not known which fields of this topic are sensitive."
	}
	if len(masked) > payloadLimit {
		return "", fmt.Sprintf("Not shown: it has %s bytes. `outboxgen events show` prints it.", commas(int64(len(masked))))
	}
	var b bytes.Buffer
	if err := json.Indent(&b, masked, "", "  "); err != nil {
		return "", "Not shown: it is not valid JSON."
	}
	return b.String(), ""
}

// traceURL fills in the template of a trace's URL from a traceparent: 00-<trace id>-<span id>-<flags>.
func traceURL(template, traceparent string) string {
	parts := strings.Split(traceparent, "-")
	isHex := func(s string, n int) bool { return len(s) == n && strings.Trim(s, "0123456789abcdef") == "" }
	if template == "" || len(parts) < 4 || !isHex(parts[1], 32) || !isHex(parts[2], 16) {
		return ""
	}
	return strings.NewReplacer("{trace_id}", parts[1], "{span_id}", parts[2]).Replace(template)
}

// lifeOf is what has happened to an event, and what will.
func lifeOf(e admin.EventDetail) []step {
	life := []step{{At: e.CreatedAt, Kind: "info", Text: "enqueued"}}
	life = append(life, failedSteps("", e.Failures)...)
	switch e.Status {
	case admin.StatusPending:
		life = append(life, step{
			e.NextAttemptAt, "info", fmt.Sprintf("due: attempt %d of %d", e.Attempts+1, e.MaxAttempts), "",
		})
	case admin.StatusProcessing:
		life = append(life, step{
			e.LockedUntil, "info",
			fmt.Sprintf("end of the lease: attempt %d of %d, by worker %s", e.Attempts, e.MaxAttempts, e.LockedBy.UUID), "",
		})
	case admin.StatusDelivered:
		life = append(life, step{e.FinalizedAt, "good", fmt.Sprintf("delivered with attempt %d", e.Attempts), ""})
	case admin.StatusDead:
		last := step{e.FinalizedAt, "bad", fmt.Sprintf("dead after attempt %d", e.Attempts), e.LastError}
		if n := len(e.Failures); n > 0 && e.Failures[n-1].Error == e.LastError {
			last.More = "" // the step above has it
		}
		life = append(life, last)
	case admin.StatusLogged:
	default:
		text := "pruned from the log: this is the copy of a listener"
		if len(e.Listeners) == 0 {
			text = "has no state: somebody has deleted it by hand"
		}
		life = append(life, step{Kind: "warn", Text: text})
	}
	for _, l := range e.Listeners {
		life = append(life, failedSteps("listener "+l.Listener+": ", l.Failures)...)
	}
	return life
}

func failedSteps(who string, failures []admin.Failure) []step {
	var steps []step
	for _, f := range failures {
		text := fmt.Sprintf("%sattempt %d failed", who, f.Attempt)
		if f.Worker != uuid.Nil {
			text += ", worker " + f.Worker.String()
		}
		steps = append(steps, step{f.At, "warn", text, f.Error})
	}
	return steps
}

// groupsOf is how many dead letters, the latest ones, are grouped. To read all of a million takes seconds.
const groupsOf = 20_000

// deadGroups are the groups of the latest dead letters. If more is set, there are older ones.
type deadGroups struct {
	list []admin.DeadGroup
	more bool
}

func (p *Page) readGroups(ctx context.Context) (deadGroups, error) {
	list, more, err := p.ops.LatestDeadGroups(ctx, admin.Filter{}, groupsOf)
	return deadGroups{list, more}, err
}

type deadBody struct {
	Filter filterForm
	Groups []admin.DeadGroup
	Total  int64
	Latest int64 // how many were grouped, if there are more
}

func (p *Page) showDead(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	filter, err := filterOf(query)
	if err != nil {
		p.fail(w, r, err)
		return
	}
	done, wait := p.doneText(query), waitFor
	if done != "" {
		wait = firstWait
	}
	groups := p.groups.get(r.Context(), freshFor, wait)
	if groups.at.IsZero() && groups.err != nil {
		p.fail(w, r, groups.err)
		return
	}
	f := frame{Name: "dead", Title: "Dead letters", Live: true, ReadAt: groups.at, Done: done}
	if groups.at.IsZero() {
		f.Stale, f.Reload = "The dead letters are being counted.", true
	} else if groups.err != nil {
		f.Stale = fmt.Sprintf("This is %s old, because newer figures cannot be read: %v", ageText(time.Since(groups.at)),
			groups.err)
	}
	body := deadBody{Filter: p.filterForm(query)}
	if groups.value.more {
		body.Latest = groupsOf
	}
	for _, g := range groups.value.list {
		if (filter.Namespace == "" || g.Namespace == filter.Namespace) && (filter.Topic == "" || g.Topic == filter.Topic) &&
			(filter.Listener == "" || g.Listener == filter.Listener) && strings.Contains(g.Error, filter.Error) {
			body.Groups = append(body.Groups, g)
			body.Total += g.Count
		}
	}
	f.Body = body
	p.show(w, r, http.StatusOK, f)
}
