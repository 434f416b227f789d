package docs

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleMarkup handles one nouns/markup event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *NounsHandler) HandleMarkup(ctx context.Context, d outbox.Delivery[Markup]) error {
	return outbox.Unimplemented("nouns/markup")
}
