package sealing

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/outboxgen/outboxgen/seal"
)

// everywhere has each text of a JSON value as sealed, at any depth.
var everywhere = &Shape{texts: true}

// Found are the sealed values that a payload has, by the id of their key. A text that looks like one counts, too.
type Found map[string]int

// Find returns the sealed values of a payload, and whether it is JSON. Those of a form that this version of the module
// does not know are not among them.
func Find(payload []byte) (Found, bool) {
	if !json.Valid(payload) {
		return nil, false
	}
	found := make(Found)
	_, err := everywhere.rewrite(payload, func(_ *walk, value []byte) ([]byte, error) {
		if _, id := sealedText(value); id != "" {
			found[id]++
		}
		return value, nil
	})
	return found, err == nil
}

// Reseal returns payload with each value that is sealed by another key sealed again by the key to, and why values could
// not be, by key. Those stay as they are. The values must be of event e.
func Reseal(ctx context.Context, ring seal.Keyring, to *seal.Key, e Event, payload []byte) ([]byte, Found, map[string]error) {
	changed, refused := make(Found), make(map[string]error)
	box, err := to.For(e.ID, e.Tenant)
	if err != nil {
		refused[to.ID()] = err
		return payload, changed, refused
	}
	o := opener{ctx: ctx, ring: ring, event: e}
	out, err := everywhere.rewrite(payload, func(w *walk, value []byte) ([]byte, error) {
		_, id := sealedText(value)
		if id == "" || id == to.ID() {
			return value, nil
		}
		opened, err := o.open(w, value)
		if err != nil {
			refused[id] = reason(err)
			return value, nil
		}
		changed[id]++
		return json.Marshal(box.Seal(w.pointer(), opened))
	})
	if err != nil { // not JSON, which Find has seen
		return payload, make(Found), refused
	}
	return out, changed, refused
}

// sealedText returns the text of value and the id of its key if it is in the sealed form.
func sealedText(value []byte) (text, id string) {
	if json.Unmarshal(value, &text) != nil {
		return "", ""
	}
	id, err := seal.KeyID(text)
	if err != nil {
		return text, ""
	}
	return text, id
}

// reason returns the cause of err that is the same for many values.
func reason(err error) error {
	for _, known := range []error{seal.ErrNoKey, seal.ErrDestroyed, seal.ErrAltered} {
		if errors.Is(err, known) {
			return known
		}
	}
	return err
}
