package docs

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleHasName handles one verbs/has_name event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *VerbsHandler) HandleHasName(ctx context.Context, d outbox.Delivery[HasName]) error {
	return outbox.Unimplemented("verbs/has_name")
}
