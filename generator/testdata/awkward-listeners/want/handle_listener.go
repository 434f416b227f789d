package outbox

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleListener handles one companion/listener event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *CompanionHandler) HandleListener(ctx context.Context, d outbox.Delivery[Listener]) error {
	return outbox.Unimplemented("companion/listener")
}
