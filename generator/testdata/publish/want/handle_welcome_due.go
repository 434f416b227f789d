package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleWelcomeDue handles one users/welcome_due event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *UsersHandler) HandleWelcomeDue(ctx context.Context, d outbox.Delivery[WelcomeDue]) error {
	return outbox.Unimplemented("users/welcome_due")
}
