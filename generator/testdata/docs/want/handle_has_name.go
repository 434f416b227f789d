package docs

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleHasName handles one verbs/has_name event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *VerbsHandler) HandleHasName(ctx context.Context, d outbox.Delivery[HasName]) error {
	return outbox.Unimplemented("verbs/has_name")
}
