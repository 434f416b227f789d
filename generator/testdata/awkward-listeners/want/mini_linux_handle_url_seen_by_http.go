package outbox

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleURLSeenByHTTP handles one handlers/url_seen event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *MiniLinuxHandler) HandleURLSeenByHTTP(ctx context.Context, d outbox.Delivery[URLSeenByHTTP]) error {
	return outbox.Unimplemented("handlers/url_seen")
}
