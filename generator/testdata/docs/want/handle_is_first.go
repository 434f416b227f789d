package docs

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleIsFirst handles one verbs/is_first event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *VerbsHandler) HandleIsFirst(ctx context.Context, d outbox.Delivery[IsFirst]) error {
	return outbox.Unimplemented("verbs/is_first")
}
