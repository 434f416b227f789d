package scalars

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleRanked handles one turns/ranked event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *TurnsHandler) HandleRanked(ctx context.Context, d outbox.Delivery[Ranked]) error {
	return outbox.Unimplemented("turns/ranked")
}
