package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleUserDeleted handles one audit/user_deleted event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *ArchiveHandler) HandleUserDeleted(ctx context.Context, d outbox.Delivery[UserDeleted]) error {
	return outbox.Unimplemented("audit/user_deleted")
}
