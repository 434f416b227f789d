package dashboard_test

import (
	"encoding/json"
	"errors"
	"html"
	"net/http"
	"net/url"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/payload"
)

type mail struct {
	Tenant uuid.UUID `json:"tenant"`
	To     string    `json:"to"`
	N      int64     `json:"n"`
	Loud   bool      `json:"loud,omitempty"`
	Tags   []string  `json:"tags,omitempty"`
	Kind   string    `json:"kind,omitempty"`
	Yes    string    `json:"yes,omitempty"`
}

func (m mail) Validate() error {
	if m.N < 0 {
		return &payload.ValidationError{Fields: payload.FieldErrors{{Field: "n", Rule: "min", Message: "is less than 0"}}}
	}
	return nil
}

var mailTopic = outbox.NewTopic[mail](outbox.TopicSpec{
	Namespace: "jobs", Name: "mail", Version: 3,
	Keys: func(v any) outbox.Keys {
		m := v.(*mail)
		return outbox.Keys{TenantID: outbox.Tenant(m.Tenant), Dedupe: eventkey.NewKey(eventkey.UUIDPart("tenant", m.Tenant), eventkey.StringPart("to", m.To))}
	},
})

const mailSchema = `{"type": "object", "required": ["tenant", "to", "n"], "properties": {"yes": {"type": "string", "enum": ["true", "false"]},
	"tenant": {"type": "string", "format": "uuid"}, "to": {"type": "string", "description": "Who gets it."}, "n": {"type": "integer"},
	"loud": {"type": "boolean"}, "tags": {"type": "array"}, "kind": {"$ref": "#/$defs/kind"}},
	"$defs": {"kind": {"type": "string", "enum": ["note", "bill"]}}}`

func masked(topic string, _ int, data json.RawMessage) (json.RawMessage, bool) {
	return json.RawMessage(`{"masked": true}`), topic == "jobs/mail"
}

// TestEnqueueGoesFromFormToRow: fields, validation, preview, confirmation, row and audit.
func TestEnqueueGoesFromFormToRow(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	s := open(t, dashboard.Config{
		Pool: pool, Mask: masked, AuthorizeEnqueue: func(*http.Request, string) error { return nil },
		Enqueue: []dashboard.EnqueueTopic{dashboard.TopicForm(mailTopic.Untyped(), json.RawMessage(mailSchema))},
	})
	require.Contains(t, s.ok("/"), ">Enqueue</a>")
	require.Equal(t, "/enqueue/jobs/mail", s.link("/enqueue", "jobs/mail"))
	page := s.ok("/enqueue/jobs/mail")
	for _, part := range []string{`<input name="p_to"`, `<select name="p_loud"`, `<option value="bill">`, `<textarea name="p_tags"`, `inputmode="decimal"`, "Who gets it.", "A UUID."} {
		require.Contains(t, page, part)
	}
	send := func(pairs ...string) answer {
		form := url.Values{}
		for i := 0; i+1 < len(pairs); i += 2 {
			form.Set(pairs[i], pairs[i+1])
		}
		return s.send(s.request(http.MethodPost, "/enqueue/jobs/mail", form))
	}
	const tenant = "6f1f4b0e-3c8a-4a57-9d2e-0f6b7c8d9eab"
	for want, typed := range map[string][]string{
		"field to is missing":          {"p_tenant", tenant, "p_n", "1"},
		"n is less than 0":             {"p_tenant", tenant, "p_to", "a", "p_n", "-1"},
		"n: it is not a number":        {"p_tenant", tenant, "p_to", "a", "p_n", "many"},
		"loud: it is neither true nor": {"p_tenant", tenant, "p_to", "a", "p_n", "1", "p_loud", "maybe"},
		"tags: it is not valid JSON":   {"p_tenant", tenant, "p_to", "a", "p_n", "1", "p_tags", "x, y"},
		"use a value of UTF-8 text":    {"p_tenant", tenant, "p_to", "a", "p_n", "1", "headers", `{"causation_id": "` + "\\u0000" + `"}`},
		"field n does not fit int64":   {"p_tenant", tenant, "p_to", "a", "p_n", "1.5"},
		"headers: they are not a JSON": {"p_tenant", tenant, "p_to", "a", "p_n", "1", "headers", "[]"},
	} {
		a := send(typed...)
		require.Equal(t, http.StatusBadRequest, a.status, want)
		require.Contains(t, a.body, want)
		require.Contains(t, a.body, "role=\"alert\"", want)
		require.Contains(t, a.body, `value="`+tenant+`"`, "what was typed stays")
	}
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.events"))

	a := send("p_tenant", tenant, "p_to", "ann", "p_n", "9007199254740993", "p_loud", "true", "p_tags", `["x"]`, "p_yes", "true", "headers", `{"a": "b"}`, "why", "ticket 812")
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.Contains(t, a.body, tenant+"/ann")
	require.Contains(t, a.body, "{&#34;masked&#34;: true}")
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.events"), "it was only shown")
	found := formPattern.FindStringSubmatch(a.body)
	require.NotNil(t, found)
	form := url.Values{}
	for _, in := range hiddenPattern.FindAllStringSubmatch(found[2], -1) {
		form.Set(in[1], html.UnescapeString(in[2]))
	}
	confirm := func() answer { return s.send(s.request(http.MethodPost, "/enqueue/jobs/mail", form)) }
	require.Contains(t, said(t, confirm()), "Enqueued.")
	require.Equal(t, 1, pgtest.Count(t, pool, `SELECT count(*) FROM outbox.events WHERE tenant_id = $1 AND dedupe_key = $1::text || '/ann' AND version = 3
		AND payload -> 'yes' = '"true"' AND payload ->> 'n' = '9007199254740993' AND headers ->> 'a' = 'b'`, uuid.MustParse(tenant)))
	require.Equal(t, "tester enqueue ticket 812 1", audits(t, pool))
	require.Equal(t, "This event has the dedupe key already: nothing was written.", said(t, confirm()))
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.events"))
	require.NotContains(t, pgtest.Value[string](t, pool, "SELECT scope::text FROM outbox.audit"), "ann")

	form.Set("payload", `{"tenant": "`+tenant+`", "to": "bob", "n": 1, "other": 1}`)
	require.Contains(t, confirm().body, "a field that the topic does not have", "what is confirmed is checked again")
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.events"))
}

// TestEnqueueNeedsItsOwnPermission: it is off by default, and asked for each topic. A page that is read-only has no form.
func TestEnqueueNeedsItsOwnPermission(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topics := []dashboard.EnqueueTopic{dashboard.TopicForm(mailTopic.Untyped(), nil)}
	form := url.Values{"count": {"1"}, "payload": {`{"tenant": "6f1f4b0e-3c8a-4a57-9d2e-0f6b7c8d9eab", "to": "a", "n": 1}`}}
	all := func(*http.Request, string) error { return nil }
	for name, c := range map[string]struct {
		cfg    dashboard.Config
		status int
	}{
		"nobody said so": {dashboard.Config{Enqueue: topics}, http.StatusForbidden},
		"refused": {dashboard.Config{Enqueue: topics, AuthorizeEnqueue: func(_ *http.Request, topic string) error {
			require.Equal(t, "jobs/mail", topic)
			return errors.New("no")
		}}, http.StatusForbidden},
		"read-only":     {dashboard.Config{Enqueue: topics, AuthorizeEnqueue: all, ReadOnly: true}, http.StatusMethodNotAllowed},
		"another topic": {dashboard.Config{AuthorizeEnqueue: all}, http.StatusNotFound},
	} {
		c.cfg.Pool = pool
		s := open(t, c.cfg)
		require.NotContains(t, s.ok("/"), ">Enqueue</a>", name)
		require.Equal(t, c.status, s.send(s.request(http.MethodPost, "/enqueue/jobs/mail", form)).status, name)
	}
	s := open(t, dashboard.Config{Pool: pool, Enqueue: topics, AuthorizeEnqueue: all})
	foreign := s.request(http.MethodPost, "/enqueue/jobs/mail", form)
	foreign.Header.Set("Sec-Fetch-Site", "cross-site")
	require.Equal(t, http.StatusForbidden, s.send(foreign).status)
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.events"))
	require.Contains(t, s.ok("/enqueue/jobs/mail"), `<textarea name="payload_json"`, "without a schema")
	_, err := dashboard.New(dashboard.Config{Pool: pool, Enqueue: []dashboard.EnqueueTopic{{Name: "mail"}}})
	require.ErrorContains(t, err, "topic \"mail\" needs a name")
}

// secret is a payload with a sealed field.
type secret struct {
	IBAN string `json:"iban" outbox:"sealed"`
}

// TestEnqueueRefusesSealedTopics: only a program that has the keys can enqueue their events.
func TestEnqueueRefusesSealedTopics(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := outbox.NewTopic[secret](outbox.TopicSpec{Namespace: "jobs", Name: "secret", Sealed: outbox.SealedFields()}).Untyped()
	s := open(t, dashboard.Config{
		Pool: pool, Mask: dashboard.Unmasked, AuthorizeEnqueue: func(*http.Request, string) error { return nil },
		Enqueue: []dashboard.EnqueueTopic{dashboard.TopicForm(topic, nil), dashboard.TopicForm(mailTopic.Untyped(), nil)},
	})
	list := s.ok("/enqueue")
	require.Contains(t, textOf(list), "jobs/secret has sealed fields: only a program that has the keys")
	require.NotContains(t, list, `href="/enqueue/jobs/secret"`)
	for _, a := range []answer{
		s.get("/enqueue/jobs/secret"),
		s.send(s.request(http.MethodPost, "/enqueue/jobs/secret", url.Values{"payload_json": {`{"iban": "swordfish"}`}})),
		s.send(s.request(http.MethodPost, "/enqueue/jobs/secret", url.Values{"count": {"1"}, "payload": {`{"iban": "swordfish"}`}})),
	} {
		require.Equal(t, http.StatusConflict, a.status)
		require.Contains(t, a.body, "This topic has sealed fields. Only a program that has the keys can enqueue its events.")
		require.NotContains(t, a.body, "swordfish")
	}
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.events"))
}
