package outbox

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleHandlers handles one handle_init/handlers event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *HandleInitHandler) HandleHandlers(ctx context.Context, d outbox.Delivery[Handlers]) error {
	return outbox.Unimplemented("handle_init/handlers")
}
