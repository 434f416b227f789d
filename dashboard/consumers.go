package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
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
			row.Chips = append(row.Chips, chip{
				"bad", "not tried", "A parked message is due for " + ageText(c.Overdue) +
					". No process of the consumer runs, or what it needs is unavailable.",
			})
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
	Waiting     []parkedRow // parked messages that wait behind no other; only if nothing is filtered
	MoreWait    bool        // there are more
	Groups      []admin.DeadGroup
	Total       int64
	Latest      int64 // how many were grouped, if there are more
	Letters     []messageRow
	Next, First string // URLs of pages
}

type messageRow struct {
	admin.DeadLetter
	URL string
}

type parkedRow struct {
	admin.ParkedMessage
	URL string
}

// messagePath is the page of a message of a consumer group: a parked one, or a dead letter.
func (p *Page) messagePath(consumer string, no int64) string {
	return p.view.path("consumers", consumer, strconv.FormatInt(no, 10))
}

// showConsumer shows the parked messages and the dead letters of a consumer group. A group that keeps nothing is not
// known, and shown as empty.
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
	own := maps.Clone(query)
	own.Del("consumer") // the path has it
	link := func(more ...string) string { return p.view.path("consumers", name) + "?" + onlyFilter(own, more...) }
	if before == 0 && onlyFilter(own) == "" {
		if err := p.parked(r.Context(), &body); err != nil {
			p.fail(w, r, err)
			return
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
	if before > 0 {
		body.First = link()
	}
	if len(letters) > eventsLimit {
		letters = letters[:eventsLimit]
		body.Next = link("before", strconv.FormatInt(letters[eventsLimit-1].No, 10))
	}
	for _, d := range letters {
		body.Letters = append(body.Letters, messageRow{d, p.messagePath(name, d.No)})
	}
	f.Live, f.Body = false, body
	p.show(w, r, http.StatusOK, f)
}

// parked reads the parked messages of the group, the next to be tried first.
func (p *Page) parked(ctx context.Context, body *consumerBody) error {
	list, err := p.ops.Parked(ctx, body.Consumer, eventsLimit+1)
	body.MoreWait = len(list) > eventsLimit
	for _, m := range list[:min(len(list), eventsLimit)] {
		body.Waiting = append(body.Waiting, parkedRow{m, p.messagePath(body.Consumer, m.No)})
	}
	return err
}

// messageBody is what the page of a message shows: of a dead letter, or of a parked message.
type messageBody struct {
	Consumer, Place, Topic string
	Version                int
	Dead                   bool
	Attempts               int
	Behind                 admin.Count // messages of its key that wait behind it
	Event, Tenant, Key     string      // "" if there is none, or it cannot be read
	Life                   []step
	Headers                map[string]string
	HeaderNames            []string
	Body                   string // indented JSON
	BodyNote               string // why there is none
	Trace                  string // a URL
}

// showMessage shows a message of a consumer group by its number, because not every message has an id that can be read.
// A dead letter keeps its number when it is replayed, and so does a parked message that is given up.
func (p *Page) showMessage(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	body, ok, err := p.message(r.Context(), name, r.PathValue("no"))
	switch {
	case err != nil:
		p.fail(w, r, err)
		return
	case !ok:
		p.show(w, r, http.StatusNotFound, frame{Name: "problem", Title: "Unknown message", Body: problem{
			"Consumer " + name + " keeps no such message.", "It was applied, discarded or pruned, or the number is wrong."}})
		return
	}
	p.show(w, r, http.StatusOK, frame{Name: "message", Title: "Message of " + name, ReadAt: time.Now(), Body: body})
}

// message reads the message that a consumer group keeps with a number.
func (p *Page) message(ctx context.Context, consumer, number string) (body messageBody, ok bool, err error) {
	no, err := strconv.ParseInt(number, 10, 64)
	if err != nil || no < 1 || no == math.MaxInt64 {
		return body, false, nil
	}
	found, err := p.ops.DeadLetters(ctx, admin.Filter{Consumer: consumer}, no+1, 1)
	if err != nil {
		return body, false, err
	}
	if len(found) > 0 && found[0].No == no {
		return p.deadMessage(found[0]), true, nil
	}
	d, ok, err := p.ops.ParkedMessage(ctx, consumer, no)
	if err != nil || !ok {
		return body, false, err
	}
	return p.parkedMessage(consumer, d), true, nil
}

func (p *Page) deadMessage(d admin.DeadLetter) messageBody {
	body := messageBody{
		Consumer: d.Consumer, Place: d.Place, Topic: d.Name(), Version: d.Version, Dead: true, Attempts: d.Attempt,
		Key: d.PartitionKey,
		Life: []step{
			{At: d.ReceivedAt, Kind: "info", Text: "arrived"},
			{At: d.DiedAt, Kind: "bad", Text: fmt.Sprintf("dead after attempt %d", d.Attempt), More: d.Error},
		},
	}
	p.fill(&body, d.ID, d.TenantID, d.Headers, d.Payload)
	return body
}

func (p *Page) parkedMessage(consumer string, d admin.ParkedDetail) messageBody {
	failed := step{At: d.FailedAt, Kind: "warn", Text: "parked", More: d.Error}
	if d.Attempts > 0 {
		failed.Text = fmt.Sprintf("attempt %d failed", d.Attempts)
	}
	next := step{At: d.NextAttemptAt, Kind: "info", Text: fmt.Sprintf("due: attempt %d", d.Attempts+1)}
	switch {
	case d.NextAttemptAt.IsZero():
		next.Text = "waits behind an earlier message of its key"
	case d.AttemptsLeft >= 0:
		next.Text += fmt.Sprintf(" of %d", d.Attempts+d.AttemptsLeft)
	}
	body := messageBody{
		Consumer: consumer, Place: d.Place, Topic: d.Topic, Version: d.Version, Attempts: d.Attempts, Behind: d.Behind,
		Key: d.Key, Life: []step{{At: d.ReceivedAt, Kind: "info", Text: "arrived"}, failed, next},
	}
	p.fill(&body, d.EventID, d.TenantID, d.Headers, d.Payload)
	return body
}

// fill sets what a message contains.
func (p *Page) fill(
	body *messageBody, event uuid.UUID, tenant uuid.NullUUID, headers map[string]string, payload json.RawMessage,
) {
	body.Headers, body.HeaderNames = headers, slices.Sorted(maps.Keys(headers))
	body.Trace = traceURL(p.cfg.TraceURL, headers["traceparent"])
	if event != uuid.Nil {
		body.Event = event.String()
	}
	if tenant.Valid {
		body.Tenant = tenant.UUID.String()
	}
	if body.BodyNote = "Not shown: it is not JSON."; payload != nil {
		body.Body, body.BodyNote = p.payloadOf(body.Topic, body.Version, payload)
	}
}

// consumerPage is where the dead letters of form are, if they are those of a consumer group.
func (p *Page) consumerPage(form url.Values) (path string, ok bool) {
	consumer := form.Get("consumer")
	return p.view.path("consumers", consumer), consumer != ""
}
