package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleWelcomeDue handles one users/welcome_due event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *UsersHandler) HandleWelcomeDue(ctx context.Context, d outbox.Delivery[WelcomeDue]) error {
	return outbox.Unimplemented("users/welcome_due")
}
