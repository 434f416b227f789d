package config

import (
	"context"

	"github.com/outboxgen/outboxgen/internal/call/isnil"
	"github.com/outboxgen/outboxgen/internal/payloads/decode"
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

func openerOf(t *outbox.UntypedTopic, strict bool) *decode.Decoder {
	spec := t.Spec()
	d := decode.NewDecoder(t.Payload(), t.Version(), strict, spec.History...)
	if spec.Sealed.Whole() {
		return d.Sealed()
	}
	return d
}
