package docs

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleDirective handles one nouns/directive event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *NounsHandler) HandleDirective(ctx context.Context, d outbox.Delivery[Directive]) error {
	return outbox.Unimplemented("nouns/directive")
}
