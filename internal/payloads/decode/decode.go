// Package decode makes payloads of stored events, for the handlers of dispatchers and listeners.
package decode

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/payloads/fastjson"
	"github.com/outboxgen/outboxgen/internal/payloads/sealing"
	"github.com/outboxgen/outboxgen/internal/payloads/upcast"
	"github.com/outboxgen/outboxgen/payload"
	"github.com/outboxgen/outboxgen/seal"
)

// Decoder decodes the payloads of a topic. It is safe for concurrent use.
type Decoder struct {
	of       reflect.Type
	plain    *fastjson.Decoder
	shape    *fastjson.Shape // of a strict decoder
	nullable bool
	version  int
	history  upcast.Chain
	past     map[int]*Decoder // of the versions in history
	sealed   *sealing.Shape   // nil if nothing is sealed
	sealErr  error            // why nobody can say what is sealed
}

// NewDecoder returns the decoder of payloads of type of, up to version, the newest that this process knows. A strict
// one refuses incomplete payloads, as outbox.TopicSpec has it. History leads from older versions to the newest; a topic
// without a history decodes them as the newest.
func NewDecoder(of reflect.Type, version int, strict bool, history ...payload.Upcaster) *Decoder {
	d := &Decoder{
		of: of, nullable: takesNull(of), version: version, history: history, past: make(map[int]*Decoder, len(history)),
	}
	for _, u := range history {
		past := NewDecoder(u.From(), u.Version(), strict)
		if u.IsSealed() {
			past = past.Sealed()
		}
		d.past[u.Version()] = past
	}
	d.sealed, d.sealErr = sealing.Of(of)
	if strict {
		d.plain, d.shape = fastjson.StrictOf(of), fastjson.ShapeOf(of)
	} else {
		d.plain = fastjson.Of(of)
	}
	return d
}

// Sealed makes d the decoder of payloads that are sealed as a whole, in the newest version.
func (d *Decoder) Sealed() *Decoder {
	d.sealed = sealing.Whole
	return d
}

// Open is Decode for a payload as it is stored, of event e: what is sealed in it is opened with the keyring of ctx.
func (d *Decoder) Open(ctx context.Context, e sealing.Event, version int, payload json.RawMessage) (any, error) {
	of := d.at(version)
	if of.sealErr != nil {
		return nil, errclass.Permanent(fmt.Errorf("open payload: %w", of.sealErr))
	}
	if of.sealed != nil && version <= d.version {
		opened, err := of.sealed.Open(ctx, seal.KeyringFromContext(ctx), e, payload)
		if err != nil {
			return nil, fmt.Errorf("open payload: %w", err)
		}
		payload = opened
	}
	return d.Decode(version, payload)
}

// Derive is Open for what is made of parts that are not sealed, such as a key. The sealed fields of the newest version
// are left as they are when nothing is decoded, so that no key is needed. The payload is not checked then.
func (d *Decoder) Derive(ctx context.Context, e sealing.Event, version int, payload json.RawMessage) (any, error) {
	if d.at(version) != d || d.sealed == nil || d.sealed == sealing.Whole || version > d.version {
		return d.Open(ctx, e, version, payload)
	}
	p := reflect.New(d.of)
	if err := json.Unmarshal(d.sealed.Without(payload), p.Interface()); err != nil {
		return nil, errclass.Permanent(fmt.Errorf("decode payload: %w", withoutValue(err)))
	}
	return p.Interface(), nil
}

// at returns the decoder of a version before it is brought to the newest.
func (d *Decoder) at(version int) *Decoder {
	if steps := d.history.From(version); len(steps) > 0 {
		return d.past[steps[0].Version()]
	}
	return d
}

// Decode returns a pointer to the payload, in which nothing is sealed. An error is permanent, unless the payload has a
// newer version: then another process may know it. An older payload is brought to the newest version.
func (d *Decoder) Decode(version int, payload json.RawMessage) (any, error) {
	if version > d.version {
		return nil, fmt.Errorf("payload has version %d, this process knows %d", version, d.version)
	}
	if steps := d.history.From(version); len(steps) > 0 {
		old, err := d.past[steps[0].Version()].Decode(steps[0].Version(), payload)
		if err != nil {
			return nil, err
		}
		return steps.Run(old, d.of)
	}
	p := reflect.New(d.of)
	if d.plain.Decode(payload, p.Elem()) {
		return p.Interface(), nil
	}
	if !d.nullable && bytes.Equal(bytes.TrimSpace(payload), []byte("null")) { // json.Unmarshal would leave the zero value
		return nil, errclass.Permanent(fmt.Errorf("decode payload: it is null, which is not a valid %s", d.of))
	}
	if err := json.Unmarshal(payload, p.Interface()); err != nil {
		if d.shape != nil {
			if path, kind := d.shape.Misfit(payload); path != "" {
				return nil, errclass.Permanent(fmt.Errorf("decode payload: field %s does not fit %s", path, kind))
			}
		}
		return nil, errclass.Permanent(fmt.Errorf("decode payload: %w", withoutValue(err)))
	}
	if d.shape != nil {
		if path, fault := d.shape.Incomplete(payload); fault != "" {
			return nil, errclass.Permanent(fmt.Errorf("decode payload: field %s %s", path, fault))
		}
	}
	return p.Interface(), nil
}

// takesNull reports whether null is a value of t: that of a nil pointer, map, list or interface, or what t makes of it.
func takesNull(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
		return true
	}
	return reflect.PointerTo(t).Implements(fastjson.Unmarshaler)
}

// withoutValue keeps the place of a decoding error and drops the value, which may be sensitive.
func withoutValue(err error) error {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		if kind.Field == "" {
			of, _, _ := strings.Cut(kind.Value, " ") // "number 17" has a value
			return fmt.Errorf("it is a JSON %s, which is not a valid %s", of, kind.Type)
		}
		return fmt.Errorf("field %q does not fit %s", kind.Field, kind.Type)
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("invalid JSON at byte %d", syntax.Offset)
	}
	return errors.New("a field does not fit its type")
}
