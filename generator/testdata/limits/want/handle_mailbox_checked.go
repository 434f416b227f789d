package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleMailboxChecked handles one mail/mailbox_checked event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *MailHandler) HandleMailboxChecked(ctx context.Context, d outbox.Delivery[MailboxChecked]) error {
	return outbox.Unimplemented("mail/mailbox_checked")
}
