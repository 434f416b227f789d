package docs

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleDirective handles one nouns/directive event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *NounsHandler) HandleDirective(ctx context.Context, d outbox.Delivery[Directive]) error {
	return outbox.Unimplemented("nouns/directive")
}
