// Package seal keeps values of payloads secret wherever events are stored or sent: in the tables, their backups, and
// brokers. The YAML says which fields are sealed (`sensitive: sealed`) or which topics (`sealed: true`). An enqueue seals
// their values before anything leaves the process, and they are opened where a handler or a consumer gets them.
//
// A Keyring has the keys. FromFile, FromEnv and FromDir make one, NewRing makes one of keys in memory, and an
// implementation of the two methods of Keyring can ask a key service:
//
//	keys, err := seal.FromFile("/run/secrets/outbox.keys")
//	...
//	ctx = seal.ContextWithKeyring(ctx, keys)             // for what enqueues
//	d, err := events.NewShopDispatcher(pool, h, queue.Config{Keyring: keys}) // for what handles
//
// # The sealed form
//
// A sealed value is the text sealed:v1:KEY:DATA, in place of the value. KEY is the id of the key and DATA, in base64url
// without padding, a nonce of 12 bytes and what AES-256-GCM makes of the JSON of the value. Its key is derived from the
// key of the keyring by HKDF-SHA256 without a salt, with the info "outboxgen sealed v1 " and the id of the event, so that
// one key seals any number of events. The additional data binds a value to its place, so that nobody can move it: the
// lines sealed:v1, key id, event id, tenant (empty without one), and the JSON Pointer (RFC 6901) of the value in the
// payload, joined by "\n". Of a topic that is sealed as a whole the payload is an object with one member, $sealed.
package seal

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// Keyring has the keys that seal and open values. It must be safe for concurrent use, and should answer from memory:
// an enqueue asks for a key while its transaction is open. What its errors mean:
//
//   - ErrNoKey, possibly wrapped: the key is not there. A value that it should open waits until it is.
//   - ErrDestroyed, possibly wrapped: the key is gone for good. The event becomes a dead letter.
//   - Any other error is an outage of the keyring: the topic of the event rests, as after outbox.Unavailable.
//
// An enqueue returns each error of SealingKey before anything is sent.
type Keyring interface {
	// SealingKey returns the key for new values in events of tenant, which is not valid if the event has none.
	SealingKey(ctx context.Context, tenant uuid.NullUUID) (*Key, error)
	// OpeningKey returns the key with id, which has sealed a value in an event of tenant.
	OpeningKey(ctx context.Context, tenant uuid.NullUUID, id string) (*Key, error)
}

// What is wrong with a key or a sealed value; test for it with errors.Is. None of the errors of this package contains a
// value or a key.
var (
	// ErrNoKey: the keyring does not have the key.
	ErrNoKey = errors.New("the keyring has no such key")
	// ErrDestroyed: the key was destroyed, so that nobody can open what it has sealed.
	ErrDestroyed = errors.New("the key was destroyed")
	// ErrAltered: a value does not open. It was altered, or moved from another event, field or tenant.
	ErrAltered = errors.New("it was altered, or moved from another event, field or tenant")
	// ErrNotSealed: a value is not in the sealed form although it should be.
	ErrNotSealed = errors.New("it is not sealed")
	// ErrNewer: a value has a later sealed form than this version of the module knows.
	ErrNewer = errors.New("it has a later sealed form than this process knows: update the module outboxgen")
)

type keyringKey struct{}

// ContextWithKeyring returns a copy of ctx with which enqueues seal by k. Handlers of a dispatcher, listener or consumer
// with a keyring get such a context already. EnqueueInBatch has no context: use outbox.WithKeyring.
func ContextWithKeyring(ctx context.Context, k Keyring) context.Context {
	return context.WithValue(ctx, keyringKey{}, k)
}

// KeyringFromContext returns the keyring of ctx, nil if it has none.
func KeyringFromContext(ctx context.Context) Keyring {
	k, _ := ctx.Value(keyringKey{}).(Keyring)
	return k
}

// PerTenant returns a Keyring that gives each tenant its own keys: of returns the keyring of a tenant, or ErrNoKey if it
// has none. Events without a tenant get the keys of shared; if that is nil, there is no key for them. To forget a tenant
// everywhere, in brokers and backups too, destroy its keys.
func PerTenant(of func(ctx context.Context, tenant uuid.UUID) (Keyring, error), shared Keyring) Keyring {
	return &perTenant{of: of, shared: shared}
}

type perTenant struct {
	of     func(context.Context, uuid.UUID) (Keyring, error)
	shared Keyring
}

func (p *perTenant) SealingKey(ctx context.Context, tenant uuid.NullUUID) (*Key, error) {
	k, err := p.keyring(ctx, tenant)
	if err != nil {
		return nil, err
	}
	return k.SealingKey(ctx, tenant)
}

func (p *perTenant) OpeningKey(ctx context.Context, tenant uuid.NullUUID, id string) (*Key, error) {
	k, err := p.keyring(ctx, tenant)
	if err != nil {
		return nil, err
	}
	return k.OpeningKey(ctx, tenant, id)
}

func (p *perTenant) keyring(ctx context.Context, tenant uuid.NullUUID) (k Keyring, err error) {
	switch {
	case tenant.Valid:
		k, err = p.of(ctx, tenant.UUID)
	default:
		k = p.shared
	}
	switch {
	case err != nil:
		return nil, err
	case k == nil && tenant.Valid:
		return nil, fmt.Errorf("tenant %s has no keys: %w", tenant.UUID, ErrNoKey)
	case k == nil:
		return nil, fmt.Errorf("the event has no tenant, and there are no shared keys: %w", ErrNoKey)
	}
	return k, nil
}
