package config

import (
	"context"
	"encoding/json"

	"github.com/outboxgen/outboxgen/internal/call/isnil"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/payloads/decode"
	"github.com/outboxgen/outboxgen/internal/payloads/sealing"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/seal"
)

// WithKeyring returns ctx with k, or ctx if k is nil.
func WithKeyring(ctx context.Context, k seal.Keyring) context.Context {
	if isnil.Is(k) {
		return ctx
	}
	return seal.ContextWithKeyring(ctx, k)
}

// Opener returns the decoder of the payloads of t.
func Opener(t *outbox.UntypedTopic) *decode.Decoder {
	return openerOf(t, t.Spec().Strict)
}

// LooseOpener is Opener for a decoder that takes incomplete payloads.
func LooseOpener(t *outbox.UntypedTopic) *decode.Decoder { return openerOf(t, false) }

// OpenPayload opens the payload of e for a handler. A codec that panics fails its event alone.
func OpenPayload(ctx context.Context, d *decode.Decoder, e *outbox.Event, raw json.RawMessage) (p any, err error) {
	err = usercode.Recover("payload", func() (err error) {
		p, err = d.Open(ctx, sealing.Event{ID: e.ID, Tenant: e.TenantID}, e.Version, raw)
		return err
	})
	return p, err
}

func openerOf(t *outbox.UntypedTopic, strict bool) *decode.Decoder {
	spec := t.Spec()
	d := decode.NewDecoder(t.Payload(), t.Version(), strict, spec.History...)
	if spec.Sealed.Whole() {
		return d.Sealed()
	}
	return d
}
