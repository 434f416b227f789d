// Package compose makes events of payloads that people type: it checks a payload by the YAML, and renders the keys that
// the generated code would render.
package compose

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/internal/tool/payloadcheck"
	"github.com/outboxgen/outboxgen/payload"
)

// Event is what comes from the payload of an event, in the columns of its row.
type Event struct {
	TenantID      uuid.NullUUID
	DedupeKey     string // "" without one
	PartitionKey  string
	EntityType    string
	EntityID      string
	EntityVersion int64
	// LimitKeys are the keys of those limits that are per destination or per template, in their order.
	LimitKeys []string
	// Payload is the payload without space between its values.
	Payload json.RawMessage
}

// Of returns the event of a topic that data makes, or what is wrong with data. What is wrong names fields, and quotes no
// value. A topic with sealed fields is refused: only a program that has the keys can enqueue its events.
func Of(t *model.Topic, data json.RawMessage) (Event, payload.FieldErrors) {
	if t.Sealed || model.HasSealed(t.Fields) {
		return Event{}, payload.FieldErrors{{Rule: "sealed", Message: "is for a topic with sealed fields: enqueue its events in a program that " +
			"has the keys"}}
	}
	if found := payloadcheck.Check(t, data); len(found) > 0 {
		return Event{}, found
	}
	c := composer{members: make(map[string]json.RawMessage)}
	var compact bytes.Buffer
	if json.Unmarshal(data, &c.members) != nil || json.Compact(&compact, data) != nil { // cannot be: it was checked
		return Event{}, payload.FieldErrors{{Rule: "json", Message: "is not valid JSON"}}
	}
	e := Event{Payload: compact.Bytes()}
	if t.Tenant != nil {
		id, err := uuid.Parse(c.text(t.Tenant))
		e.TenantID = uuid.NullUUID{UUID: id, Valid: err == nil}
	}
	e.DedupeKey = c.key("dedupe key", t.DedupeKey)
	e.PartitionKey = c.key("partition key", t.PartitionKey)
	if t.Entity != nil {
		e.EntityType, e.EntityID = t.Entity.Type, c.key("entity id", t.Entity.ID)
		if v := t.Entity.Version; v != nil {
			e.EntityVersion = c.number(v)
		}
	}
	for _, l := range t.Limits {
		switch {
		case l.Key != nil:
			e.LimitKeys = append(e.LimitKeys, c.key("key of a limit", l.Key))
		case l.Keyed() && t.Publish.Field != nil:
			e.LimitKeys = append(e.LimitKeys, c.destination(t.Publish.Field))
		case l.Keyed():
			e.LimitKeys = append(e.LimitKeys, t.Publish.Destination)
		}
	}
	return e, c.found
}

// Text says in one line what is wrong with a payload.
func Text(found payload.FieldErrors) string {
	lines := make([]string, len(found))
	for i, f := range found {
		lines[i] = f.Error()
	}
	return strings.Join(lines, "; ")
}

// composer renders the keys of one payload.
type composer struct {
	members map[string]json.RawMessage
	found   payload.FieldErrors
}

// text returns the value of a field that is a string in JSON; "" if it is absent.
func (c *composer) text(f *model.Field) (s string) {
	if json.Unmarshal(c.members[f.Name], &s) != nil {
		return ""
	}
	return s
}

func (c *composer) number(f *model.Field) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(string(c.members[f.Name])), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// destination returns the value of a field as the destination of an event: like its JSON without quotes.
func (c *composer) destination(f *model.Field) string {
	value := c.members[f.Name]
	switch f.Type.Base() {
	case model.Bool, model.Int32, model.Int64:
		return strings.TrimSpace(string(value))
	case model.Float64:
		var n float64
		_ = json.Unmarshal(value, &n) // it was checked
		return strconv.FormatFloat(n, 'g', -1, 64)
	case model.Duration:
		return time.Duration(c.number(f)).String()
	case model.Timestamp:
		var at time.Time
		_ = json.Unmarshal(value, &at)
		return at.Format(time.RFC3339Nano)
	case model.UUID:
		id, err := uuid.Parse(c.text(f))
		if err != nil {
			return ""
		}
		return id.String()
	}
	return c.text(f)
}

// key renders a template as the functions of package eventkey do; "" for nil.
func (c *composer) key(name string, t *model.Template) string {
	if t == nil {
		return ""
	}
	parts := make([]eventkey.KeyPart, len(t.Segments))
	for i, s := range t.Segments {
		if s.Field == nil {
			parts[i] = eventkey.LiteralPart(s.Prefix)
			continue
		}
		parts[i] = c.part(s.Field).Affix(s.Prefix, s.Suffix)
	}
	key := eventkey.NewKey(parts...)
	if field := key.EmptyField(); field != "" {
		c.found = append(c.found, payload.FieldError{
			Field: field, Rule: "key", Message: "is empty, and is a part of the " + name,
		})
	}
	return key.String()
}

func (c *composer) part(f *model.Field) eventkey.KeyPart {
	switch f.Type.Base() {
	case model.UUID:
		id, err := uuid.Parse(c.text(f))
		if err != nil {
			id = uuid.Nil
		}
		return eventkey.UUIDPart(f.Name, id)
	case model.Int32, model.Int64:
		return eventkey.IntPart(f.Name, c.number(f))
	case model.Date:
		d, err := payload.ParseDate(c.text(f))
		if err != nil {
			d = payload.Date{}
		}
		return eventkey.DatePart(f.Name, d)
	}
	return eventkey.StringPart(f.Name, c.text(f))
}
