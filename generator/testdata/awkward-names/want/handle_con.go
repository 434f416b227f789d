package outbox

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleCon handles one aux/con event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *AuxHandler) HandleCon(ctx context.Context, d outbox.Delivery[Con]) error {
	return outbox.Unimplemented("aux/con")
}
