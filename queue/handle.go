package queue

import (
	"context"
	"encoding/json"
	"time"

	"github.com/outboxgen/outboxgen/internal/incoming"
	"github.com/outboxgen/outboxgen/internal/relay"
	"github.com/outboxgen/outboxgen/internal/settings"
	"github.com/outboxgen/outboxgen/outbox"
)

// Handler ties a topic to the user's code for it. Handle makes one.
type Handler struct {
	schema, namespace, topic string
	lease                    time.Duration
	policy                   policy
	run                      func(context.Context, outbox.Event, json.RawMessage) error // nil without a handler
	publication              *relay.Route                                               // in place of run
}

// policy is what the YAML says of a topic and SQL is not told by its rows.
type policy struct {
	retry     outbox.Retry
	retention outbox.Retention
}

// Handle ties t to fn, which generated code makes of a method of the handlers h; a nil h is an error of NewDispatcher. The
// payload is decoded before fn is called; one that does not decode, which no later attempt will, is a
// permanent failure, and one of a newer version than t's an ordinary one, so that a newer process gets it.
func Handle[P any](t outbox.Topic[P], h any, fn func(context.Context, outbox.Delivery[P]) error) Handler {
	if fn == nil {
		return HandleUntyped(t.Untyped(), nil, nil)
	}
	return HandleUntyped(t.Untyped(), h, func(ctx context.Context, e outbox.Event, p any) error {
		return fn(ctx, outbox.Delivery[P]{Event: e, Payload: *p.(*P)})
	})
}

// HandleUntyped is Handle without the type of the payload, of which fn gets a pointer. Generated code uses it, because each
// instance of Handle would be compiled.
func HandleUntyped(t *outbox.UntypedTopic, h any, fn func(ctx context.Context, e outbox.Event, payload any) error) Handler {
	spec := t.Spec()
	th := Handler{
		schema: spec.Schema, namespace: spec.Namespace, topic: spec.Name, lease: spec.Lease,
		policy: policy{retry: settings.RetryWithDefaults(spec.Retry), retention: settings.RetentionWithDefaults(spec.Retention)},
	}
	if h == nil {
		return th
	}
	decoder := incoming.NewDecoder(t.Payload(), t.Version())
	th.run = func(ctx context.Context, e outbox.Event, payload json.RawMessage) error {
		p, err := decoder.Decode(e.Version, payload)
		if err != nil {
			return err
		}
		return fn(ctx, e, p)
	}
	return th
}
