package docs

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleWasFirst handles one verbs/was_first event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *VerbsHandler) HandleWasFirst(ctx context.Context, d outbox.Delivery[WasFirst]) error {
	return outbox.Unimplemented("verbs/was_first")
}
