package outbox

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleURLSeenByHTTP handles one handlers/url_seen event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *CompanionReaderHandler) HandleURLSeenByHTTP(ctx context.Context, d outbox.Delivery[URLSeenByHTTP]) error {
	return outbox.Unimplemented("handlers/url_seen")
}
