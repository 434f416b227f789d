package outbox

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleLinux handles one companion/linux event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *IDHandler) HandleLinux(ctx context.Context, d outbox.Delivery[Linux]) error {
	return outbox.Unimplemented("companion/linux")
}
