package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/payloads/sealing"
	"github.com/outboxgen/outboxgen/internal/postgres/ownedtx"
	"github.com/outboxgen/outboxgen/seal"
)

var errNoKeyring = errors.New("the topic has sealed parts, and there is no keyring: use a context of " +
	"seal.ContextWithKeyring, or the option outbox.WithKeyring")

// seal seals what is to be sealed of m, whose id is id. It returns ctx with the keyring that was used, for a fake, which
// opens what it has recorded. tx is nil for a batch.
//
// The keyring is the user's code. If it panics, seal returns an error.
func (m *Message) seal(ctx context.Context, tx Tx, id uuid.UUID) (context.Context, error) {
	if m.sealed == nil {
		return ctx, nil
	}
	ring := m.keyring
	if ring == nil {
		ring = seal.KeyringFromContext(ctx)
	}
	if ring == nil && tx != nil {
		if _, fake := ownedtx.Innermost(tx).(recorder); fake {
			ring = seal.ForTests()
		}
	}
	if ring == nil {
		return ctx, errNoKeyring
	}
	var err error
	crashed := usercode.Recover("the keyring", func() error {
		m.Payload, err = m.sealed.Seal(ctx, ring, sealing.Event{ID: id, Tenant: m.TenantID}, m.Payload)
		return nil
	})
	switch {
	case crashed != nil:
		return ctx, crashed
	case err != nil:
		return ctx, fmt.Errorf("seal payload: %w", err)
	case len(m.Payload) > MaxPayloadBytes:
		return ctx, fmt.Errorf("sealed payload has %d bytes of at most %d: %w", len(m.Payload), MaxPayloadBytes,
			ErrPayloadTooLarge)
	}
	return seal.ContextWithKeyring(ctx, ring), nil
}
