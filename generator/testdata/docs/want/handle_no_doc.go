package docs

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleNoDoc handles one nouns/no_doc event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *NounsHandler) HandleNoDoc(ctx context.Context, d outbox.Delivery[NoDoc]) error {
	return outbox.Unimplemented("nouns/no_doc")
}
