package docs

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandlePlural handles one nouns/plural event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *NounsHandler) HandlePlural(ctx context.Context, d outbox.Delivery[Plural]) error {
	return outbox.Unimplemented("nouns/plural")
}
