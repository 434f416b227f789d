package docs

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleLong handles one nouns/long event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *NounsHandler) HandleLong(ctx context.Context, d outbox.Delivery[Long]) error {
	return outbox.Unimplemented("nouns/long")
}
