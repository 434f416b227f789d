package outbox

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleAHandleLinux handles one handlers/a_handle_linux event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *HandlersHandler) HandleAHandleLinux(ctx context.Context, d outbox.Delivery[AHandleLinux]) error {
	return outbox.Unimplemented("handlers/a_handle_linux")
}
