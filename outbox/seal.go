package outbox

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/payloads/sealing"
	"github.com/outboxgen/outboxgen/internal/postgres/ownedtx"
	"github.com/outboxgen/outboxgen/seal"
)

// Sealed says what of the payloads of a topic is sealed. The zero value means nothing; SealedFields and SealedPayload
// return the others.
type Sealed struct {
	// of returns what seals payloads of a type, nil if there is nothing to seal. Only code that seals refers to what it is
	// made of, so that other programs do not link that.
	of    func(reflect.Type) (sealer, error)
	whole bool
}

// sealer seals the payload of a message.
type sealer interface {
	// seal seals what is to be sealed of m, whose id is id. It returns ctx with the keyring that was used, for a fake, which
	// opens what it has recorded. tx is nil for a batch.
	seal(ctx context.Context, tx Tx, m *Message, id uuid.UUID) (context.Context, error)
}

// SealedFields seals the fields with the struct tag `outbox:"sealed"`, at any depth, each by itself.
func SealedFields() Sealed {
	return Sealed{of: func(t reflect.Type) (sealer, error) {
		s, err := sealing.Of(t)
		if s == nil {
			return nil, err
		}
		return sealedParts{s}, nil
	}}
}

// SealedPayload seals payloads as a whole: what is stored is an object with the one member $sealed.
func SealedPayload() Sealed {
	return Sealed{whole: true, of: func(reflect.Type) (sealer, error) { return sealedParts{sealing.Whole}, nil }}
}

// Whole reports whether payloads are sealed as a whole.
func (s Sealed) Whole() bool { return s.whole }

// seal is that of sealer. It does nothing for a topic without sealed parts.
func (m *Message) seal(ctx context.Context, tx Tx, id uuid.UUID) (context.Context, error) {
	if m.sealed == nil {
		return ctx, nil
	}
	return m.sealed.seal(ctx, tx, m, id)
}

// sealedParts is the sealer of payloads of a shape.
type sealedParts struct{ shape *sealing.Shape }

// seal calls the keyring, which is the user's code. If that panics, it returns an error.
func (p sealedParts) seal(ctx context.Context, tx Tx, m *Message, id uuid.UUID) (context.Context, error) {
	ring := m.keyring
	if ring == nil {
		ring = seal.KeyringFromContext(ctx)
	}
	if ring == nil && tx != nil {
		if fake, ok := ownedtx.Innermost(tx).(recorder); ok {
			ring = fake.Keyring()
		}
	}
	if ring == nil {
		return ctx, errors.New("the topic has sealed parts, and there is no keyring: use a context of " +
			"seal.ContextWithKeyring, or the option outbox.WithKeyring")
	}
	var err error
	crashed := usercode.Recover("the keyring", func() error {
		m.Payload, err = p.shape.Seal(ctx, ring, sealing.Event{ID: id, Tenant: m.TenantID}, m.Payload)
		return nil
	})
	switch {
	case crashed != nil:
		return ctx, usercode.Private(crashed)
	case err != nil:
		return ctx, fmt.Errorf("seal payload: %w", err)
	case len(m.Payload) > MaxPayloadBytes:
		return ctx, fmt.Errorf("sealed payload has %d bytes of at most %d: %w", len(m.Payload), MaxPayloadBytes,
			ErrPayloadTooLarge)
	}
	return seal.ContextWithKeyring(ctx, ring), nil
}
