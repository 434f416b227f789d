package shop

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleLinked handles one contacts/linked event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *ContactsHandler) HandleLinked(ctx context.Context, d outbox.Delivery[Linked]) error {
	return outbox.Unimplemented("contacts/linked")
}
