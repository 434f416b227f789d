package docs

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleNoDoc handles one nouns/no_doc event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *NounsHandler) HandleNoDoc(ctx context.Context, d outbox.Delivery[NoDoc]) error {
	return outbox.Unimplemented("nouns/no_doc")
}
