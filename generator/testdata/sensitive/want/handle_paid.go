package people

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandlePaid handles one people/paid event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *PeopleHandler) HandlePaid(ctx context.Context, d outbox.Delivery[Paid]) error {
	return outbox.Unimplemented("people/paid")
}
