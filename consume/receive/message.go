package receive

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// maxName is the longest key or place that is kept as it is. Longer ones would not fit into an index.
const maxName = 512

// item is a message on its way.
type item struct {
	message  Message
	id       string // identifies the message in the group
	key      string // "" if it has no order
	event    consume.Event
	prepared *consume.Prepared // nil with a fault, and while it is unready
	fault    error             // why it can never be applied
	unready  error             // why it cannot be read yet: what it needs is unavailable

	attempts int    // that have failed
	doubts   int    // failures that may not be its own
	last     error  // the latest failure
	fate     fate   // what the next transaction does with it
	after    *int64 // the delay of the next attempt in microseconds, if it is parked
	outcome  Outcome
	newest   int64 // the version of its entity that was applied before, if it was skipped after it had been parked
}

// fate is what a transaction does with a message.
type fate int

const (
	fateApply fate = iota
	fatePark
	fateDie
	fateIgnore
)

// prepare reads a message.
func (r *Receiver) prepare(ctx context.Context, m Message) *item {
	it := &item{message: m, key: nameOf(m.Key)}
	err := r.read(ctx, it)
	if err == nil {
		it.id = it.event.ID.String()
		return it
	}
	if troubleOf(err).class == troubleAway && errclass.Marked(err) {
		it.unready = err
	} else {
		it.fault, it.fate = err, fateDie
	}
	if received, unread := consume.Parse(m.Message); unread == nil {
		it.event = received.Event
	}
	var known *consume.Error
	if errors.As(err, &known) {
		it.event.ID = known.EventID
		it.event.Type = cmp.Or(it.event.Type, known.Topic)
	}
	it.id = it.event.ID.String()
	if it.event.ID == uuid.Nil {
		it.id = placeID(m)
	}
	if errors.Is(err, consume.ErrUnknownTopic) && r.cfg.IgnoreUnknown {
		it.fate = fateIgnore
	}
	return it
}

// read reads the message of it.
func (r *Receiver) read(ctx context.Context, it *item) error {
	p, err := r.consumer.Prepare(ctx, it.message.Message)
	if err == nil {
		it.prepared, it.event, it.unready = p, p.Event(), nil
	}
	return err
}

// placeID identifies a message without a readable id: by its place, and by its content too, because the same place can
// have another message after somebody has created the broker's topic again.
func placeID(m Message) string {
	h := sha256.New()
	column, _ := envelopeOf(m.Message)
	_, _ = h.Write([]byte(column))
	_, _ = h.Write(m.Body)
	return nameOf(m.Place) + "#" + hex.EncodeToString(h.Sum(nil)[:8])
}

// nameOf returns a key or place in a form that PostgreSQL can store and index. Different names stay different.
func nameOf(name string) string {
	if len(name) <= maxName && utf8.ValidString(name) && !strings.ContainsRune(name, 0) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// envelope is the column of that name: a message without its body.
type envelope struct {
	ContentType text            `json:"content_type"`
	Attributes  map[string]text `json:"attributes,omitempty"`
	Headers     map[string]text `json:"headers,omitempty"`
}

// text is a string that may have any bytes. In JSON it is a string, or an object with base64 if it is not UTF-8.
type text string

type encodedText struct {
	Base64 string `json:"base64"`
}

// MarshalJSON implements json.Marshaler.
func (t text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(encodedText{base64.StdEncoding.EncodeToString([]byte(t))})
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var e encodedText
		if err := json.Unmarshal(b, &e); err != nil {
			return err
		}
		raw, err := base64.StdEncoding.DecodeString(e.Base64)
		*t = text(raw)
		return err
	}
	return json.Unmarshal(b, (*string)(t))
}

func texts(m map[string]string) map[string]text {
	converted := make(map[string]text, len(m))
	for name, value := range m {
		converted[name] = text(value)
	}
	return converted
}

func strs(m map[string]text) map[string]string {
	converted := make(map[string]string, len(m))
	for name, value := range m {
		converted[name] = string(value)
	}
	return converted
}

// envelopeOf returns a message without its body as JSON in ASCII, which a database of any encoding can store.
func envelopeOf(m consume.Message) (string, error) {
	b, err := json.Marshal(envelope{text(m.ContentType), texts(m.Attributes), texts(m.Headers)})
	if err != nil {
		return "", err
	}
	var ascii strings.Builder
	for _, r := range string(b) {
		switch {
		case r < utf8.RuneSelf:
			ascii.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&ascii, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&ascii, `\u%04x`, r)
		}
	}
	return ascii.String(), nil
}

// messageOf is the inverse of envelopeOf.
func messageOf(column string, body []byte) (consume.Message, error) {
	var e envelope
	if err := json.Unmarshal([]byte(column), &e); err != nil {
		return consume.Message{}, fmt.Errorf("read envelope: %w", err)
	}
	return consume.Message{
		ContentType: string(e.ContentType), Attributes: strs(e.Attributes), Headers: strs(e.Headers), Body: body,
	}, nil
}

// clean returns text in a form that a database with that encoding can store.
func clean(s, encoding string) string { return errclass.Storable(errclass.Text(s), encoding) }
