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

// DecoderOf returns the decoder of the payloads of t.
func DecoderOf(t *outbox.UntypedTopic) *decode.Decoder {
	return decoderOf(t, t.Spec().Strict)
}

// LooseDecoderOf is DecoderOf for a decoder that takes incomplete payloads.
func LooseDecoderOf(t *outbox.UntypedTopic) *decode.Decoder { return decoderOf(t, false) }

func decoderOf(t *outbox.UntypedTopic, strict bool) *decode.Decoder {
	spec := t.Spec()
	d := decode.NewDecoder(t.Payload(), t.Version(), strict, spec.History...)
	if spec.Sealed {
		return d.Sealed()
	}
	return d
}
