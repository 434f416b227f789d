package seal

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// Ring is a Keyring of keys in memory, the same for all tenants. It does not change and may be used concurrently.
type Ring struct {
	sealing   *Key
	keys      map[string]*Key
	destroyed map[string]bool
}

// NewRing returns a Ring that seals with sealing, and opens with that key and with others, the older ones.
func NewRing(sealing *Key, others ...*Key) (*Ring, error) {
	if sealing == nil {
		return nil, errors.New("new keyring: no key given (nil)")
	}
	r := &Ring{sealing: sealing, keys: map[string]*Key{sealing.id: sealing}}
	for _, k := range others {
		switch {
		case k == nil:
			return nil, errors.New("new keyring: one of the keys is nil")
		case r.keys[k.id] != nil:
			return nil, fmt.Errorf("new keyring: two keys have the id %s", k.id)
		}
		r.keys[k.id] = k
	}
	return r, nil
}

// Parse returns the Ring that text describes: entries of the form ID:SECRET, separated by white space or commas, where
// SECRET has 32 bytes in base64. The first one seals, all open. An entry ID:destroyed tells that a key is gone for good.
// What follows a # in a line is a comment. `openssl rand -base64 32` makes a secret.
func Parse(text string) (*Ring, error) {
	r := &Ring{keys: make(map[string]*Key), destroyed: make(map[string]bool)}
	n := 0
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		for _, entry := range strings.FieldsFunc(line, func(c rune) bool { return strings.ContainsRune(" \t\r\n,", c) }) {
			n++
			if err := r.add(entry); err != nil {
				return nil, fmt.Errorf("entry %d of the keys: %w", n, err)
			}
		}
	}
	if r.sealing == nil && len(r.destroyed) == 0 {
		return nil, errors.New("there are no keys: write an entry of the form ID:SECRET, with the secret of `openssl rand -base64 32`")
	}
	return r, nil
}

// add adds an entry. Its errors must not quote it: it may have a secret anywhere.
func (r *Ring) add(entry string) error {
	id, secret, ok := strings.Cut(entry, ":")
	switch {
	case !ok || !isID(id):
		return errors.New("it does not have the form ID:SECRET")
	case r.keys[id] != nil || r.destroyed[id]:
		return fmt.Errorf("the key id %s is there twice", id)
	case secret == "destroyed":
		r.destroyed[id] = true
		return nil
	}
	secret = strings.TrimRight(strings.NewReplacer("-", "+", "_", "/").Replace(secret), "=")
	decoded, err := base64.RawStdEncoding.DecodeString(secret)
	if err != nil {
		return fmt.Errorf("the secret of key %s is not base64", id)
	}
	k, err := NewKey(id, decoded)
	if err != nil {
		return err
	}
	if r.keys[id] = k; r.sealing == nil {
		r.sealing = k
	}
	return nil
}

// IDs returns the ids of the keys that r has, sorted.
func (r *Ring) IDs() []string {
	ids := make([]string, 0, len(r.keys))
	for id := range r.keys {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// SealingKey returns the key that seals, ErrDestroyed if r has only keys that were destroyed.
func (r *Ring) SealingKey(context.Context, uuid.NullUUID) (*Key, error) {
	if r.sealing == nil {
		return nil, ErrDestroyed
	}
	return r.sealing, nil
}

// OpeningKey returns the key with id, or ErrNoKey or ErrDestroyed.
func (r *Ring) OpeningKey(_ context.Context, _ uuid.NullUUID, id string) (*Key, error) {
	switch k := r.keys[id]; {
	case k != nil:
		return k, nil
	case r.destroyed[id]:
		return nil, ErrDestroyed
	}
	return nil, ErrNoKey
}

// FromEnv returns the Ring that the environment variable name has, in the form of Parse.
func FromEnv(name string) (*Ring, error) {
	text := os.Getenv(name)
	if text == "" {
		return nil, fmt.Errorf("read keys: the environment variable %s is not set", name)
	}
	r, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("read keys of the environment variable %s: %w", name, err)
	}
	return r, nil
}

// ForTests returns a Keyring whose secret everybody knows, for tests: package outboxfake and package outboxtest use it
// unless the context has another one. Its key id, for-tests-only, shows in each value that it has sealed.
func ForTests() Keyring {
	k, _ := NewKey("for-tests-only", []byte("outboxgen: everybody knows this.")) // the id and the secret are right
	return &Ring{sealing: k, keys: map[string]*Key{k.id: k}}
}
