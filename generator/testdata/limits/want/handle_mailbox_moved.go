package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleMailboxMoved handles one mail/mailbox_moved event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *MailHandler) HandleMailboxMoved(ctx context.Context, d outbox.Delivery[MailboxMoved]) error {
	return outbox.Unimplemented("mail/mailbox_moved")
}
