package outbox

import (
	"context"
	"encoding/json"
	"time"
)

// TopicHandler ties a topic to the user's code for it. Handle makes one.
type TopicHandler struct {
	schema, namespace, topic string
	lease                    time.Duration
	policy                   policy
	run                      func(context.Context, Event, json.RawMessage) error // nil without a handler
	publication              *publication                                        // in place of run
}

// policy is what the YAML says of a topic and SQL is not told by its rows.
type policy struct {
	retry     Retry
	retention Retention
}

// Handle ties t to fn, a method of h: generated code passes the method of the handlers' interface. The
// payload is decoded before fn is called; one that does not decode, which no later attempt will, is a
// permanent failure, and one of a newer version than t's an ordinary one, so that a newer process gets it.
func Handle[H, P any](t Topic[P], h H, fn func(H, context.Context, Delivery[P]) error) TopicHandler {
	th := TopicHandler{
		schema: t.Schema, namespace: t.Namespace, topic: t.Name, lease: t.Lease,
		policy: policy{retry: t.Retry.withDefaults(), retention: t.Retention.withDefaults()},
	}
	if any(h) == nil || fn == nil {
		return th
	}
	decode := decoder(t)
	th.run = func(ctx context.Context, e Event, payload json.RawMessage) error {
		d, err := decode(e, payload)
		if err != nil {
			return err
		}
		return fn(h, ctx, d)
	}
	return th
}
