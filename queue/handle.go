package queue

import (
	"context"
	"time"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/target"
	"github.com/outboxgen/outboxgen/internal/payloads/decode"
	"github.com/outboxgen/outboxgen/outbox"
)

// Handler ties a topic to the user's code for it. Handle and HandleBatch make one.
type Handler struct {
	schema, namespace, topic string
	renamedFrom              []string // earlier names of the topic, whose events are handled too
	version                  int
	lease, maxLag            time.Duration
	fairness                 outbox.Fairness
	limits                   []outbox.Limit
	of                       *outbox.UntypedTopic
	policy                   policy
	decoder                  *decode.Decoder // of a handler
	batch                    outbox.Batch
	publication              *target.Route // in place of a handler

	// The handler gets pointers to payloads. One of both is nil, both are without a handler.
	run      func(ctx context.Context, e outbox.Event, payload any) error
	runBatch func(ctx context.Context, events []outbox.Event, payloads []any) error
}

// policy is the part of a topic's YAML that its rows do not hold.
type policy struct {
	retry     outbox.Retry
	retention outbox.Retention
}

// Handle ties t to fn, which generated code makes of a method of the handlers h. A nil h is an error of NewDispatcher.
// The payload is decoded before fn is called. A payload that does not decode is a permanent failure, because no later
// attempt would decode it. Events with a newer version than that of t are not claimed: they wait for a process that
// knows it. Events under a name of RenamedFrom are delivered to fn too; Event.Topic is the name that the event has.
func Handle[P any](t outbox.Topic[P], h any, fn func(context.Context, outbox.Delivery[P]) error) Handler {
	if fn == nil {
		return HandleUntyped(t.Untyped(), nil, nil)
	}
	return HandleUntyped(t.Untyped(), h, func(ctx context.Context, e outbox.Event, p any) error {
		return fn(ctx, outbox.Delivery[P]{Event: e, Payload: *p.(*P)})
	})
}

// HandleUntyped is Handle without the type of the payload: fn gets a pointer to it. Generated code uses it to save
// compiling an instance of Handle per topic.
func HandleUntyped(
	t *outbox.UntypedTopic, h any, fn func(ctx context.Context, e outbox.Event, payload any) error,
) Handler {
	spec := t.Spec()
	th := Handler{
		schema: spec.Schema, namespace: spec.Namespace, topic: spec.Name, renamedFrom: spec.RenamedFrom, version: t.Version(),
		lease: spec.Lease, maxLag: spec.MaxLag, fairness: spec.Fairness, limits: spec.Limits, of: t, batch: spec.Batch,
		policy: policy{retry: config.RetryWithDefaults(spec.Retry), retention: config.RetentionWithDefaults(spec.Retention)},
	}
	if h == nil {
		return th
	}
	th.decoder, th.run = config.Opener(t), fn
	return th
}

// names returns the names of the topic, the current one first.
func (h *Handler) names() []string { return append([]string{h.topic}, h.renamedFrom...) }
