package dashboard

import (
	"context"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/admin"
)

// untried is how long a parked message may be due before the page says so: a running process tries it within seconds.
const untried = 10 * time.Minute

type consumerRow struct {
	admin.ConsumerStatus
	Chips []chip
}

func consumerRows(list []admin.ConsumerStatus) []consumerRow {
	var rows []consumerRow
	for _, c := range list {
		row := consumerRow{ConsumerStatus: c}
		switch {
		case c.Overdue >= untried:
			row.Chips = append(row.Chips, chip{"bad", "not tried", "A parked message is due for " + ageText(c.Overdue) + ". No process of the consumer runs, or what it needs is unavailable."})
		case c.Parked.N > 0:
			row.Chips = append(row.Chips, chip{"warn", "parked", shortText(firstLine(c.Error))})
		}
		rows = append(rows, row)
	}
	return rows
}

// LastError is that of the latest dead letter, or of the oldest parked message if there is no dead letter.
func (r consumerRow) LastError() string {
	if r.Dead.N > 0 {
		return r.DeadError
	}
	return r.Error
}

func (p *Page) showConsumers(w http.ResponseWriter, r *http.Request) {
	o, f, err := p.current(r, frame{Name: "consumers", Title: "Consumers"})
	if err != nil {
		p.fail(w, r, err)
		return
	}
	f.Body = consumerRows(o.Consumers)
	p.show(w, r, http.StatusOK, f)
}

type consumerBody struct {
	consumerRow
	Filter      filterForm
	Groups      []admin.DeadGroup
	Total       int64
	Latest      int64 // how many were grouped, if there are more
	Letters     []messageRow
	Next, First string // URLs of pages
}

type messageRow struct {
	admin.DeadLetter
	URL, TopicText string
}

func (p *Page) messageRow(d admin.DeadLetter) messageRow {
	return messageRow{d, p.view.path("consumers", d.Consumer, strconv.FormatInt(d.No, 10)), topicText(d.Namespace, d.Topic)}
}

// topicText is the name of a topic, or what stands for it if the message has none that can be read.
func topicText(namespace, topic string) string {
	if namespace == "" {
		return topic
	}
	return namespace + "/" + topic
}

// showConsumer shows the dead letters of a consumer group. A group that keeps nothing is not known, and shown as empty.
func (p *Page) showConsumer(w http.ResponseWriter, r *http.Request) {
	name, query := r.PathValue("name"), r.URL.Query()
	query.Set("consumer", name)
	filter, err := filterOf(query)
	var before int64
	if text := query.Get("before"); err == nil && text != "" {
		if before, err = strconv.ParseInt(text, 10, 64); err != nil || before < 1 {
			err = bad("before: %q is not a number of a dead letter", text)
		}
	}
	if err != nil {
		p.fail(w, r, err)
		return
	}
	o, f, err := p.current(r, frame{Name: "consumer", Title: "Consumer " + name})
	if err != nil {
		p.fail(w, r, err)
		return
	}
	body := consumerBody{Filter: p.filterForm(query)}
	body.Consumer = name
	for _, row := range consumerRows(o.Consumers) {
		if row.Consumer == name {
			body.consumerRow = row
		}
	}
	letters, err := p.ops.DeadLetters(r.Context(), filter, before, eventsLimit+1)
	if err == nil && before == 0 {
		var more bool
		if body.Groups, more, err = p.ops.LatestDeadGroups(r.Context(), filter, groupsOf); more {
			body.Latest = groupsOf
		}
	}
	if err != nil {
		p.fail(w, r, err)
		return
	}
	for _, g := range body.Groups {
		body.Total += g.Count
	}
	link := func(more ...string) string {
		q := maps.Clone(query)
		q.Del("consumer") // the path has it
		return p.view.path("consumers", name) + "?" + onlyFilter(q, more...)
	}
	if before > 0 {
		body.First = link()
	}
	if len(letters) > eventsLimit {
		letters = letters[:eventsLimit]
		body.Next = link("before", strconv.FormatInt(letters[eventsLimit-1].No, 10))
	}
	for _, d := range letters {
		body.Letters = append(body.Letters, p.messageRow(d))
	}
	f.Live, f.Body = false, body
	p.show(w, r, http.StatusOK, f)
}

type messageBody struct {
	messageRow
	Tenant, Event string
	HeaderNames   []string
	Body          string // indented JSON
	BodyNote      string // why there is none
	Trace         string // a URL
}

// showMessage shows a dead letter of a consumer group by its number, because not every message has an id that can be read.
func (p *Page) showMessage(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	d, ok, err := p.message(r.Context(), name, r.PathValue("no"))
	switch {
	case err != nil:
		p.fail(w, r, err)
		return
	case !ok:
		p.show(w, r, http.StatusNotFound, frame{Name: "problem", Title: "Unknown message", Body: problem{
			"Consumer " + name + " has no such dead letter.", "It was replayed, discarded or pruned, or the number is wrong."}})
		return
	}
	body := messageBody{messageRow: p.messageRow(d), HeaderNames: slices.Sorted(maps.Keys(d.Headers)), Trace: traceURL(p.cfg.TraceURL, d.Headers["traceparent"])}
	if d.TenantID.Valid {
		body.Tenant = d.TenantID.UUID.String()
	}
	if d.ID != uuid.Nil {
		body.Event = d.ID.String()
	}
	if body.BodyNote = "Not shown: it is not JSON."; d.Payload != nil {
		body.Body, body.BodyNote = p.payloadOf(body.TopicText, d.Version, d.Payload)
	}
	p.show(w, r, http.StatusOK, frame{Name: "message", Title: "Message of " + name, ReadAt: time.Now(), Body: body})
}

// message reads the dead letter of a consumer group with a number.
func (p *Page) message(ctx context.Context, consumer, number string) (d admin.DeadLetter, ok bool, err error) {
	no, err := strconv.ParseInt(number, 10, 64)
	if err != nil || no < 1 || no == math.MaxInt64 {
		return d, false, nil
	}
	found, err := p.ops.DeadLetters(ctx, admin.Filter{Consumer: consumer}, no+1, 1)
	if err != nil || len(found) == 0 || found[0].No != no {
		return d, false, err
	}
	return found[0], true, nil
}

// consumerPage is where the dead letters of form are, if they are those of a consumer group.
func (p *Page) consumerPage(form url.Values) (path string, ok bool) {
	consumer := form.Get("consumer")
	return p.view.path("consumers", consumer), consumer != ""
}
