package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleMailSent handles one mail/mail_sent event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *MailHandler) HandleMailSent(ctx context.Context, d outbox.Delivery[MailSent]) error {
	return outbox.Unimplemented("mail/mail_sent")
}
