package people

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandlePaid handles one people/paid event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *PeopleHandler) HandlePaid(ctx context.Context, d outbox.Delivery[Paid]) error {
	return outbox.Unimplemented("people/paid")
}
