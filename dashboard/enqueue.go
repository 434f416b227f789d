package dashboard

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/outbox"
)

// EnqueueTopic is a topic of which the page has a form that enqueues an event.
type EnqueueTopic struct {
	// Name is "namespace/topic".
	Name string
	// Schema is the JSON Schema of its payload, as `outboxgen export jsonschema` prints it: the form has a field for each
	// property. Nil means one field for all of the payload, in JSON.
	Schema json.RawMessage
	// Message returns the event of a payload, or an error that says what is wrong with the payload, and quotes no value. It
	// is called by any number of goroutines. TopicForm makes one of a generated topic.
	Message func(payload json.RawMessage) (outbox.Message, error)
	// Sealed says that something of the payload is to be sealed. The page then has no form, because only a program that has
	// the keys can enqueue such an event.
	Sealed bool
}

// mayEnqueue returns the topics of which who sends r may enqueue events.
func (p *Page) mayEnqueue(r *http.Request) (topics []EnqueueTopic) {
	if p.cfg.ReadOnly || p.cfg.AuthorizeEnqueue == nil {
		return nil
	}
	for _, t := range p.cfg.Enqueue {
		if p.cfg.AuthorizeEnqueue(r, t.Name) == nil {
			topics = append(topics, t)
		}
	}
	return topics
}

// enqueueBody is what the page shows: the topics, or the form of one, or what would be written.
type enqueueBody struct {
	Topics  []EnqueueTopic
	Topic   string
	Path    string
	Problem string
	Fields  []formField
	Extras  []input
	Why     string
	Row     []input // what would be written
	Hidden  []input
	Means   string
}

const sealedText = "This topic has sealed fields. Only a program that has the keys can enqueue its events."

var errEnqueueRefused = errors.New("nobody has allowed you to enqueue events of this topic: AuthorizeEnqueue decides that")

// enqueueTopic returns the topic of the path, if who sends r may enqueue its events.
func (p *Page) enqueueTopic(w http.ResponseWriter, r *http.Request) (EnqueueTopic, bool) {
	name := r.PathValue("namespace") + "/" + r.PathValue("topic")
	i := slices.IndexFunc(p.cfg.Enqueue, func(t EnqueueTopic) bool { return t.Name == name })
	switch {
	case i < 0:
		p.show(w, r, http.StatusNotFound, frame{
			Name: "problem", Title: "Not Found", Body: problem{"The page has no form for " + name + ".", "The menu leads to all pages."},
		})
		return EnqueueTopic{}, false
	case p.cfg.AuthorizeEnqueue == nil || p.cfg.AuthorizeEnqueue(r, name) != nil:
		p.show(w, r, http.StatusForbidden, frame{
			Name: "problem", Title: "Forbidden", Body: problem{errEnqueueRefused.Error(), "Nothing was changed."},
		})
		return EnqueueTopic{}, false
	case p.cfg.Enqueue[i].Sealed:
		p.show(w, r, http.StatusConflict, frame{
			Name: "problem", Title: "Enqueue " + name, Body: problem{sealedText, "Nothing was changed."},
		})
		return EnqueueTopic{}, false
	}
	return p.cfg.Enqueue[i], true
}

// showEnqueue lists the topics.
func (p *Page) showEnqueue(w http.ResponseWriter, r *http.Request) {
	body := enqueueBody{Topics: p.mayEnqueue(r)}
	slices.SortFunc(body.Topics, func(x, y EnqueueTopic) int { return strings.Compare(x.Name, y.Name) })
	p.show(w, r, http.StatusOK, frame{Name: "enqueue", Title: "Enqueue", Body: body})
}

// askEnqueue shows the form of a topic.
func (p *Page) askEnqueue(w http.ResponseWriter, r *http.Request) {
	if t, ok := p.enqueueTopic(w, r); ok {
		p.showForm(w, r, t, http.StatusOK, nil, "")
	}
}

// showForm shows the form of a topic with what somebody has typed.
func (p *Page) showForm(
	w http.ResponseWriter, r *http.Request, t EnqueueTopic, status int, typed url.Values, problem string,
) {
	fields := fieldsOf(t.Schema)
	for i := range fields {
		fields[i].Value = typed.Get(fields[i].Name)
	}
	namespace, topic, _ := strings.Cut(t.Name, "/")
	p.show(w, r, status, frame{Name: "enqueue", Title: "Enqueue " + t.Name, Body: enqueueBody{
		Topic: t.Name, Path: p.view.path("enqueue", namespace, topic), Problem: problem, Fields: fields, Why: typed.Get("why"),
		Extras: []input{
			{Name: "not_before", Label: "Not before", Value: typed.Get("not_before"), Hint: "A duration like 2h, or a time like " +
				"2026-05-01 12:00 (UTC): when the first attempt may begin. Empty means at once. For queue topics."},
			{Name: "headers", Label: "Headers", Value: typed.Get("headers"), Hint: "A JSON object of strings. Empty means none."},
		},
	}})
}

// maxEnqueueForm is the largest form with a payload, in bytes.
const maxEnqueueForm = 4 * outbox.MaxPayloadBytes

// doEnqueue shows what would be written, and writes it when that is confirmed.
func (p *Page) doEnqueue(w http.ResponseWriter, r *http.Request) {
	t, ok := p.enqueueTopic(w, r)
	if !ok {
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxEnqueueForm)
	if err := r.ParseForm(); err != nil {
		p.fail(w, r, bad("the form cannot be read: %v", err))
		return
	}
	form := r.PostForm
	confirmed := form.Get("count") == "1"
	data := json.RawMessage(form.Get("payload"))
	if !confirmed {
		var err error
		if data, err = payloadOf(fieldsOf(t.Schema), form); err != nil {
			p.showForm(w, r, t, http.StatusBadRequest, form, err.Error())
			return
		}
	}
	m, err := messageOf(t, data, form)
	if err != nil {
		p.showForm(w, r, t, http.StatusBadRequest, form, err.Error())
		return
	}
	who := whoIs(r.Context())
	act := admin.Act{Who: who, Why: strings.TrimSpace(form.Get("why")), DryRun: !confirmed}
	receipt, err := p.ops.Enqueue(r.Context(), m, act)
	if isAboutMessage(err) {
		p.showForm(w, r, t, http.StatusBadRequest, form, strings.TrimPrefix(err.Error(), "enqueue "+t.Name+": "))
		return
	}
	if err != nil {
		p.fail(w, r, err)
		return
	}
	if !confirmed {
		p.confirmEnqueue(w, r, t, m, receipt, data)
		return
	}
	p.overview.forget()
	did := "enqueue"
	if receipt.Duplicate {
		did = "enqueue-duplicate"
	}
	p.cfg.Logger.InfoContext(r.Context(), "dashboard: acted", "act", did, "who", who, "topic", t.Name, "event_id", receipt.ID)
	http.Redirect(w, r, p.view.path("events", receipt.ID.String())+"?did="+did, http.StatusSeeOther)
}

// isAboutMessage reports whether err was found in what somebody has typed, before anything was sent to the database.
func isAboutMessage(err error) bool {
	return err != nil && !errors.As(err, new(*pgconn.PgError)) && !isUnavailable(err) && !errors.Is(err, outbox.ErrNotMigrated)
}

// messageOf returns the event that a form describes.
func messageOf(t EnqueueTopic, data json.RawMessage, form url.Values) (m outbox.Message, err error) {
	if m, err = t.Message(data); err != nil {
		return m, err
	}
	if m.Namespace+"/"+m.Topic != t.Name {
		return m, fmt.Errorf("the form of %s has made an event of %s/%s", t.Name, m.Namespace, m.Topic)
	}
	if text := strings.TrimSpace(form.Get("not_before")); text != "" {
		d, notDuration := time.ParseDuration(text)
		if m.NotBefore = time.Now().Add(d); notDuration != nil {
			if m.NotBefore, err = momentOf("not before", text); err != nil {
				return m, err
			}
		}
	}
	if text := strings.TrimSpace(form.Get("headers")); text != "" {
		if err := json.Unmarshal([]byte(text), &m.Headers); err != nil {
			return m, bad("headers: they are not a JSON object of strings")
		}
	}
	return m, nil
}

// confirmEnqueue shows what would be written.
func (p *Page) confirmEnqueue(
	w http.ResponseWriter, r *http.Request, t EnqueueTopic, m outbox.Message, receipt outbox.Receipt, data json.RawMessage,
) {
	namespace, topic, _ := strings.Cut(t.Name, "/")
	body := enqueueBody{
		Topic: t.Name, Path: p.view.path("enqueue", namespace, topic),
		Means: "One event is written, and delivered like any other. The audit records your name, the topic and the id of the event.",
		Hidden: []input{
			{Name: "payload", Value: string(data)}, {Name: "not_before", Value: r.PostForm.Get("not_before")},
			{Name: "headers", Value: r.PostForm.Get("headers")}, {Name: "why", Value: r.PostForm.Get("why")},
			{Name: "count", Value: "1"},
		},
	}
	add := func(name, value string) {
		if value != "" {
			body.Row = append(body.Row, input{Label: name, Value: value})
		}
	}
	add("Version", fmt.Sprint(m.Version))
	if m.TenantID.Valid {
		add("Tenant", m.TenantID.UUID.String())
	}
	add("Dedupe key", m.DedupeKey)
	add("Partition key", m.PartitionKey)
	if m.Entity.Type != "" {
		add("Entity", fmt.Sprintf("%s/%s, version %d", m.Entity.Type, m.Entity.ID, m.Entity.Version))
	}
	if !m.NotBefore.IsZero() {
		add("Not before", m.NotBefore.UTC().Format("2006-01-02 15:04:05"))
	}
	add("Headers", r.PostForm.Get("headers"))
	add("Payload", p.maskedText(t.Name, m))
	if receipt.Duplicate {
		body.Means = fmt.Sprintf("Event %s has the dedupe key already: nothing would be written.", receipt.ID)
		body.Hidden = nil
	}
	p.show(w, r, http.StatusOK, frame{Name: "enqueue", Title: "Enqueue " + t.Name, Body: body})
}

// maskedText returns the payload of m as it may be shown.
func (p *Page) maskedText(topic string, m outbox.Message) string {
	if p.cfg.Mask != nil {
		if masked, ok := p.cfg.Mask(topic, m.Version, m.Payload); ok {
			return string(masked)
		}
	}
	return "not shown, because nobody says what of it is sensitive"
}
