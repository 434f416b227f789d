package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleDone handles one jobs/done event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *EyesHandler) HandleDone(ctx context.Context, d outbox.Delivery[Done]) error {
	return outbox.Unimplemented("jobs/done")
}
