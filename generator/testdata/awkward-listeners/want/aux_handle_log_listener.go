package outbox

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleLogListener handles one handlers/listener event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *AuxHandler) HandleLogListener(ctx context.Context, d outbox.Delivery[LogListener]) error {
	return outbox.Unimplemented("handlers/listener")
}
