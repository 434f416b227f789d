package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleSaid handles one shop/said event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *EarHandler) HandleSaid(ctx context.Context, d outbox.Delivery[Said]) error {
	return outbox.Unimplemented("shop/said")
}
