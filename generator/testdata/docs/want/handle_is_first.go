package docs

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleIsFirst handles one verbs/is_first event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *VerbsHandler) HandleIsFirst(ctx context.Context, d outbox.Delivery[IsFirst]) error {
	return outbox.Unimplemented("verbs/is_first")
}
