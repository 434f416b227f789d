package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleBegin handles one calendar/begin event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *ReaderHandler) HandleBegin(ctx context.Context, d outbox.Delivery[Begin]) error {
	return outbox.Unimplemented("calendar/begin")
}
