package shop

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleLinked handles one contacts/linked event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *ContactsHandler) HandleLinked(ctx context.Context, d outbox.Delivery[Linked]) error {
	return outbox.Unimplemented("contacts/linked")
}
