package docs

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleRead handles one logs/read event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *HostileHandler) HandleRead(ctx context.Context, d outbox.Delivery[Read]) error {
	return outbox.Unimplemented("logs/read")
}
