package docs

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleRead handles one logs/read event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *NounHandler) HandleRead(ctx context.Context, d outbox.Delivery[Read]) error {
	return outbox.Unimplemented("logs/read")
}
