package sealing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/seal"
)

// Event is what the values of an event are bound to.
type Event struct {
	ID     uuid.UUID
	Tenant uuid.NullUUID
}

// What is wrong with a payload or a call, besides the errors of package seal.
var (
	// ErrNoKeyring: there is nothing to seal or open with.
	ErrNoKeyring = errors.New("there is no keyring")
	// ErrNotJSON: a payload is not JSON.
	ErrNotJSON = errors.New("the payload is not JSON")

	errOtherCase = errors.New("its name is written with other letters")
	errNotText   = errors.New("there is more than the sealed payload")
)

// Fault says which part of a payload cannot be sealed or opened. Its text has no value.
type Fault struct {
	Field string // "" for all of it
	Err   error
}

// Error names the part and the cause.
func (f *Fault) Error() string {
	if f.Field == "" || f.Field == Member {
		return "payload: " + f.Err.Error()
	}
	return "field " + f.Field + ": " + f.Err.Error()
}

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Err }

// Seal returns payload, valid JSON of the shape s, with the sealed form in place of each value that is to be sealed.
func (s *Shape) Seal(ctx context.Context, ring seal.Keyring, e Event, payload []byte) ([]byte, error) {
	if s == nil {
		return payload, nil
	}
	if ring == nil {
		return nil, ErrNoKeyring
	}
	key, err := ring.SealingKey(ctx, e.Tenant)
	if err != nil {
		return nil, fmt.Errorf("get the key: %w", err)
	}
	if key == nil {
		return nil, errors.New("get the key: the keyring returned none and no error")
	}
	box, err := key.For(e.ID, e.Tenant)
	if err != nil {
		return nil, err
	}
	if s == Whole {
		payload = append(append([]byte(`{"`+Member+`":`), payload...), '}')
	}
	return s.rewrite(payload, func(w *walk, value []byte) ([]byte, error) {
		return json.Marshal(box.Seal(w.pointer(), value))
	})
}

// Open is the inverse of Seal. An error is a *Fault, unless payload is not JSON, and is marked for package errclass:
// permanent, unless the key may come later.
func (s *Shape) Open(ctx context.Context, ring seal.Keyring, e Event, payload []byte) ([]byte, error) {
	if s == nil {
		return payload, nil
	}
	if !json.Valid(payload) {
		return nil, errclass.Permanent(ErrNotJSON)
	}
	o := opener{ctx: ctx, ring: ring, event: e}
	opened, err := s.rewrite(payload, o.open)
	if err != nil || s != Whole {
		return opened, err
	}
	if o.count != 1 || o.rest(payload) {
		fault := errNotText
		if o.count == 0 {
			fault = seal.ErrNotSealed
		}
		return nil, errclass.Permanent(&Fault{Err: fault})
	}
	return o.last, nil
}

// Without returns payload without the members that are sealed.
func (s *Shape) Without(payload []byte) []byte {
	if s == nil || !json.Valid(payload) {
		return payload
	}
	rest, err := s.rewrite(payload, func(*walk, []byte) ([]byte, error) { return nil, nil })
	if err != nil {
		return payload
	}
	return rest
}

// rewrite copies payload and calls replace for each value that is sealed.
func (s *Shape) rewrite(payload []byte, replace func(*walk, []byte) ([]byte, error)) ([]byte, error) {
	w := walk{in: payload, out: make([]byte, 0, len(payload)+len(payload)/2+128), replace: replace}
	if _, err := w.value(s, space(payload, 0)); err != nil {
		return nil, w.fault(err)
	}
	return w.out, nil
}

// fault returns err with the part that it is about, and with its mark.
func (w *walk) fault(err error) error {
	f := &Fault{Field: w.String(), Err: err}
	switch {
	case errclass.Marked(err):
		return f
	case errors.Is(err, seal.ErrNoKey):
		return errclass.Wait(f)
	case errors.Is(err, seal.ErrDestroyed), errors.Is(err, seal.ErrAltered), errors.Is(err, seal.ErrNotSealed),
		errors.Is(err, errOtherCase):
		return errclass.Permanent(f)
	case errors.Is(err, seal.ErrNewer):
		return errclass.Wait(f)
	}
	return errclass.Unavailable(f, false)
}

// opener opens the values of one event, most of which have the same key.
type opener struct {
	ctx   context.Context
	ring  seal.Keyring
	event Event
	boxes map[string]*seal.Box
	count int
	last  []byte
}

func (o *opener) open(w *walk, value []byte) ([]byte, error) {
	var text string
	if value[0] != '"' || json.Unmarshal(value, &text) != nil {
		return nil, seal.ErrNotSealed
	}
	id, err := seal.KeyID(text)
	if err != nil {
		return nil, err
	}
	box, err := o.box(id)
	if err != nil {
		return nil, fmt.Errorf("it is sealed with key %s: %w", short(id), err)
	}
	opened, err := box.Open(w.pointer(), text)
	if err != nil {
		return nil, fmt.Errorf("it does not open with key %s: %w", short(id), err)
	}
	if !json.Valid(opened) { // sealed by hand
		return nil, fmt.Errorf("what key %s opens is not JSON: %w", short(id), seal.ErrAltered)
	}
	o.count, o.last = o.count+1, opened
	return opened, nil
}

func (o *opener) box(id string) (*seal.Box, error) {
	if box := o.boxes[id]; box != nil {
		return box, nil
	}
	if o.ring == nil {
		return nil, ErrNoKeyring
	}
	key, err := o.ring.OpeningKey(o.ctx, o.event.Tenant, id)
	switch {
	case err != nil:
		return nil, err
	case key == nil || key.ID() != id:
		return nil, errors.New("the keyring returned no key, or one with another id, and no error")
	}
	box, err := key.For(o.event.ID, o.event.Tenant)
	if err != nil {
		return nil, err
	}
	if o.boxes == nil {
		o.boxes = make(map[string]*seal.Box)
	}
	o.boxes[id] = box
	return box, nil
}

// rest reports whether payload has other members than the sealed one.
func (o *opener) rest(payload []byte) bool {
	var members map[string]json.RawMessage
	return json.Unmarshal(payload, &members) != nil || len(members) != 1
}

// short returns a key id for people. One that holds a wrapped key may be long.
func short(id string) string {
	const most = 80
	if len(id) > most {
		return id[:most] + "..."
	}
	return id
}
