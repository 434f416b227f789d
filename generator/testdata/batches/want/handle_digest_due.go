package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleDigestDueBatch handles several mail/digest_due events.
// It may run more than once per event, so its effects must be idempotent. Return nil when all are done, an
// outbox.BatchError to name those that have failed, or any other error when all have. Until it is written, the
// events of the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *MailHandler) HandleDigestDueBatch(ctx context.Context, ds []outbox.Delivery[DigestDue]) error {
	return outbox.Unimplemented("mail/digest_due")
}
