package people

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleLeft handles one people/left event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *PeopleHandler) HandleLeft(ctx context.Context, d outbox.Delivery[Left]) error {
	return outbox.Unimplemented("people/left")
}
