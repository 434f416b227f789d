package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleDigestDue handles one mail/digest_due event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *MailHandler) HandleDigestDue(ctx context.Context, d outbox.Delivery[DigestDue]) error {
	return outbox.Unimplemented("mail/digest_due")
}
