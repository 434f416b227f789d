package outbox

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleTest handles one companion/test event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *CompanionReaderHandler) HandleTest(ctx context.Context, d outbox.Delivery[Test]) error {
	return outbox.Unimplemented("companion/test")
}
