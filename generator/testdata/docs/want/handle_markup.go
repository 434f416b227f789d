package docs

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleMarkup handles one nouns/markup event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *NounsHandler) HandleMarkup(ctx context.Context, d outbox.Delivery[Markup]) error {
	return outbox.Unimplemented("nouns/markup")
}
