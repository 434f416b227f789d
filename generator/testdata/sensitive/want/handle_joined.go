package people

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleJoined handles one people/joined event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *PeopleHandler) HandleJoined(ctx context.Context, d outbox.Delivery[Joined]) error {
	return outbox.Unimplemented("people/joined")
}
