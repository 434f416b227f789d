package seal

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// KeyBytes is the length of the secret of a key.
const KeyBytes = 32

const (
	family  = "sealed:" // of all versions of the sealed form
	prefix  = "sealed:v1:"
	info    = "outboxgen sealed v1 " // of the derived key of an event, before its id
	idBytes = 1024
	nonce   = 12
	tag     = 16
)

// isID reports whether id is made of what an id may have.
func isID(id string) bool {
	for i := range len(id) {
		c := id[i]
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && strings.IndexByte("._~-", c) < 0 {
			return false
		}
	}
	return id != "" && len(id) <= idBytes
}

// Key is a secret with the id by which sealed values name it. Whatever prints or encodes a Key does not show the secret.
// It may be used concurrently. The zero Key is not a key.
type Key struct {
	id string
	// box makes the Box of an event. Only code that makes keys refers to it, so that programs without sealed topics do not
	// link what it is made of; and nothing that prints values finds the secret in it.
	box func(event uuid.UUID, tenant uuid.NullUUID) (*Box, error)
}

// NewKey returns the key with id and secret, which has 32 random bytes. An id has up to 1024 letters and digits of ASCII
// and the characters . _ ~ -. A keyring that wraps its keys can have a wrapped key in the id.
func NewKey(id string, secret []byte) (*Key, error) {
	switch {
	case len(id) > idBytes:
		return nil, fmt.Errorf("key id has %d bytes of at most %d", len(id), idBytes)
	case !isID(id):
		return nil, fmt.Errorf("key id %.80q is not made of ASCII letters, digits, '.', '_', '~' and '-'", id)
	case len(secret) != KeyBytes:
		return nil, fmt.Errorf("key %s has %d bytes, not %d", id, len(secret), KeyBytes)
	}
	own := bytes.Clone(secret)
	return &Key{id: id, box: func(event uuid.UUID, tenant uuid.NullUUID) (*Box, error) {
		return newBox(id, own, event, tenant)
	}}, nil
}

// ID returns the id of the key.
func (k *Key) ID() string { return k.id }

// For returns what seals and opens the values of one event, which has the tenant if that is valid.
func (k *Key) For(event uuid.UUID, tenant uuid.NullUUID) (*Box, error) {
	if k.box == nil {
		return nil, errors.New("the key was not made by seal.NewKey")
	}
	return k.box(event, tenant)
}

func newBox(id string, secret []byte, event uuid.UUID, tenant uuid.NullUUID) (*Box, error) {
	derived, err := hkdf.Key(sha256.New, secret, nil, info+event.String(), KeyBytes)
	if err != nil {
		return nil, fmt.Errorf("derive the key of an event: %w", err)
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, err
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	owner := ""
	if tenant.Valid {
		owner = tenant.UUID.String()
	}
	return &Box{
		prefix: prefix + id + ":", gcm: gcm,
		bound: strings.Join([]string{"sealed:v1", id, event.String(), owner, ""}, "\n"),
	}, nil
}

// Box seals and opens the values of one event with one key. It may be used concurrently.
type Box struct {
	prefix string // of the sealed form
	bound  string // the additional data before the path
	gcm    cipher.AEAD
}

// Seal returns the sealed form of value, which is JSON and stands at path, a JSON Pointer, in the payload.
func (b *Box) Seal(path string, value []byte) string {
	data := make([]byte, nonce, nonce+len(value)+tag)
	_, _ = rand.Read(data) // it never returns an error
	data = b.gcm.Seal(data, data, value, []byte(b.bound+path))
	return b.prefix + base64.RawURLEncoding.EncodeToString(data)
}

// Open returns the JSON of the value whose sealed form stands at path in the payload. An error is ErrAltered.
func (b *Box) Open(path, sealed string) ([]byte, error) {
	text, ok := strings.CutPrefix(sealed, b.prefix)
	if !ok {
		return nil, ErrAltered
	}
	data, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(data) < nonce+tag {
		return nil, ErrAltered
	}
	value, err := b.gcm.Open(nil, data[:nonce], data[nonce:], []byte(b.bound+path))
	if err != nil {
		return nil, ErrAltered
	}
	return value, nil
}

// KeyID returns the id of the key of a sealed value. An error is ErrNewer for a later form, and ErrNotSealed for any
// other text.
func KeyID(sealed string) (string, error) {
	rest, ok := strings.CutPrefix(sealed, family)
	if !ok {
		return "", ErrNotSealed
	}
	version, rest, _ := strings.Cut(rest, ":")
	if version != "v1" {
		if len(version) > 1 && version[0] == 'v' && strings.Trim(version[1:], "0123456789") == "" && version[1] != '0' {
			return "", ErrNewer
		}
		return "", ErrNotSealed
	}
	id, data, ok := strings.Cut(rest, ":")
	if !ok || data == "" || !isID(id) {
		return "", ErrNotSealed
	}
	return id, nil
}
