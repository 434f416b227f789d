package consume

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/payloads/fastjson"
	"github.com/outboxgen/outboxgen/internal/payloads/sealing"
	"github.com/outboxgen/outboxgen/internal/payloads/upcast"
	"github.com/outboxgen/outboxgen/payload"
	"github.com/outboxgen/outboxgen/seal"
)

// Topic is one kind of event with payload P, as in the producer's YAML. outboxgen generates one variable per topic. A
// Topic cannot be changed and may be used concurrently. The zero value is not a topic: it decodes nothing.
type Topic[P any] struct{ spec *TopicSpec }

// TopicSpec describes a topic to NewTopic.
type TopicSpec struct {
	Namespace, Name string
	// RenamedFrom are earlier names of the topic, in the same namespace. Events with one of them are consumed like those
	// with Name; Event.Topic is the name that the event has.
	RenamedFrom []string
	// WireName is the type of the topic's messages, as in publish.Publication; "" means namespace.topic. Messages with a
	// type of namespace.topic are consumed as well: they were published before the topic had the WireName.
	WireName string
	// FormerWireNames are the types of messages of older versions.
	FormerWireNames []string
	// Sealed says that payloads are sealed as a whole, as outbox.TopicSpec has it. Fields with the struct tag
	// `outbox:"sealed"` are sealed by themselves otherwise.
	Sealed bool
	// Version is the newest schema number of the payload that this consumer knows. 0 means 1, as in outbox.TopicSpec.
	Version int
	// History leads from older versions of the payload to Version, oldest first and without a gap. Without it, payloads of
	// older versions are decoded as if they had Version.
	History []payload.Upcaster
}

// NewTopic returns the topic that spec describes. If P has a method Validate() error, DecodeStrict and a strict
// Consumer call it.
func NewTopic[P any](spec TopicSpec) Topic[P] { return Topic[P]{&spec} }

// Spec returns what t was made of, the zero TopicSpec for the zero Topic.
func (t Topic[P]) Spec() TopicSpec { return t.spec.value() }

// String returns "namespace/name".
func (t Topic[P]) String() string { return t.spec.String() }

// Decode reads the payload of r and checks its structure: every required field is present and not null, zero or empty
// where that is no value of its type (a UUID, a timestamp, a date, an enum), and every field has its type. Fields that
// t does not know are ignored. Decode does not check the bounds of the YAML, and an enum may have a value that t does
// not know. So a producer can widen its rules before its consumers are updated. Use the enum's method Known to test a
// value.
//
// A payload of an older version is brought to the present one by the functions in the topic's History, whose error is
// permanent unless it is marked otherwise. It must be complete too. Delivery.Version says which version the event has.
// The error is an *Error that wraps ErrUnknownTopic, ErrUnknownVersion, ErrInvalidPayload or the error of such a
// function.
//
// Nothing that is sealed is opened, so an event of a topic with sealed parts is an error: use Open.
func (t Topic[P]) Decode(r Received) (Delivery[P], error) {
	return t.Open(context.Background(), nil, r)
}

// Open is Decode for a topic with sealed parts: it opens them with the keys of k. r.Payload stays sealed. If k does not
// have a key yet, the error names it and is not permanent.
func (t Topic[P]) Open(ctx context.Context, k seal.Keyring, r Received) (Delivery[P], error) {
	var p P
	err := t.spec.decode(ctx, k, &r, &p, false)
	return Delivery[P]{Event: r.Event, Payload: p}, err
}

// DecodeStrict is Decode and also checks the rules of the YAML that the package was generated from: bounds, patterns
// and the values of enums. It does not check these rules for a payload of an older version.
func (t Topic[P]) DecodeStrict(r Received) (Delivery[P], error) {
	var p P
	err := t.spec.decode(context.Background(), nil, &r, &p, true)
	return Delivery[P]{Event: r.Event, Payload: p}, err
}

func (t *TopicSpec) value() TopicSpec {
	if t == nil {
		return TopicSpec{}
	}
	return *t
}

// String returns "namespace/name".
func (t *TopicSpec) String() string {
	spec := t.value()
	return spec.Namespace + "/" + spec.Name
}

// types returns the types of the topic's messages. The first len(RenamedFrom)+1 have the form namespace.topic.
func (t *TopicSpec) types() []string {
	spec := t.value()
	types := []string{spec.Namespace + "." + spec.Name}
	for _, name := range spec.RenamedFrom {
		types = append(types, spec.Namespace+"."+name)
	}
	for _, name := range append([]string{spec.WireName}, spec.FormerWireNames...) {
		if name != "" && !slices.Contains(types, name) {
			types = append(types, name)
		}
	}
	return types
}

// name sets the namespace and topic of an event whose type is a wire name of t. It reports whether the event is one of
// t.
func (t *TopicSpec) name(e *Event) bool {
	spec := t.value()
	kind := cmp.Or(e.Type, e.Namespace+"."+e.Topic)
	at := slices.Index(t.types(), kind)
	if at > len(spec.RenamedFrom) {
		e.Namespace, e.Topic = spec.Namespace, spec.Name
	}
	return at >= 0
}

// opened returns the payload of r, of a version that has the type of p, with what is sealed in it opened.
func (t *TopicSpec) opened(ctx context.Context, k seal.Keyring, r *Received, p any) (json.RawMessage, error) {
	s := sealing.Whole
	if !t.Sealed {
		var err error
		if s, err = sealing.Of(reflect.TypeOf(p).Elem()); err != nil {
			return nil, about(&r.Event, "", err)
		}
	}
	payload, err := s.Open(ctx, k, sealing.Event{ID: r.ID, Tenant: r.TenantID}, r.Payload)
	var fault *sealing.Fault
	switch {
	case err == nil:
		return payload, nil
	case !errors.As(err, &fault):
		return nil, invalid(&r.Event, "", "is not JSON")
	case errclass.IsPermanent(err):
		err = fmt.Errorf("%w: %w", err, ErrInvalidPayload)
	}
	return nil, about(&r.Event, fault.Field, err)
}

// decode names the event of r and decodes its payload into p, a pointer to the topic's type.
func (t *TopicSpec) decode(ctx context.Context, k seal.Keyring, r *Received, p any, strict bool) error {
	spec := t.value()
	known := cmp.Or(spec.Version, 1)
	switch {
	case !t.name(&r.Event):
		return about(&r.Event, "", ErrUnknownTopic)
	case r.Version > known:
		return about(&r.Event, "", fmt.Errorf("this consumer knows versions up to %d: %w", known, ErrUnknownVersion))
	case !json.Valid(r.Payload):
		return invalid(&r.Event, "", "is not JSON")
	case !bytes.HasPrefix(bytes.TrimSpace(r.Payload), []byte("{")):
		return invalid(&r.Event, "", "is not a JSON object")
	}
	if steps := upcast.Chain(spec.History).From(r.Version); len(steps) > 0 {
		return t.upcast(ctx, k, r, p, steps)
	}
	raw, err := t.opened(ctx, k, r, p)
	if err != nil {
		return err
	}
	s := fastjson.ShapeOf(reflect.TypeOf(p).Elem())
	if err := json.Unmarshal(raw, p); err != nil {
		field, kind := s.Misfit(raw)
		if field == "" {
			return invalid(&r.Event, "", "does not fit its type")
		}
		return invalid(&r.Event, field, "does not fit "+kind.String())
	}
	if field, fault := s.Incomplete(raw); fault != "" {
		return invalid(&r.Event, field, fault)
	}
	v, ok := p.(interface{ Validate() error })
	if !ok || !strict || r.Version < known {
		return nil
	}
	if err := v.Validate(); err != nil {
		field := ""
		var broken *payload.ValidationError
		if errors.As(err, &broken) && len(broken.Fields) > 0 {
			field = broken.Fields[0].Field
		} else {
			err = ErrInvalidPayload // the text of a foreign error may hold a value
		}
		return about(&r.Event, field, errtext.Without("validate "+spec.Namespace+"/"+spec.Name+": ", err))
	}
	return nil
}

// upcast decodes the payload of r, which is older than t knows, into p by way of steps.
func (t *TopicSpec) upcast(ctx context.Context, k seal.Keyring, r *Received, p any, steps upcast.Chain) error {
	old := *t
	old.Version, old.Sealed, old.History = steps[0].Version(), steps[0].IsSealed(), nil
	from := reflect.New(steps.Type()).Interface()
	if err := old.decode(ctx, k, r, from, false); err != nil {
		return err
	}
	made, err := steps.Run(from, reflect.TypeOf(p).Elem())
	if err != nil {
		return about(&r.Event, "", err)
	}
	reflect.ValueOf(p).Elem().Set(reflect.ValueOf(made).Elem())
	return nil
}
