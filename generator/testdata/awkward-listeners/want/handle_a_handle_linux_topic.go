package outbox

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleAHandleLinux handles one handlers/a_handle_linux event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *HandlersHandler) HandleAHandleLinux(ctx context.Context, d outbox.Delivery[AHandleLinux]) error {
	return outbox.Unimplemented("handlers/a_handle_linux")
}
