package outbox

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleTest handles one companion/test event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *AWindowsTestHandler) HandleTest(ctx context.Context, d outbox.Delivery[Test]) error {
	return outbox.Unimplemented("companion/test")
}
