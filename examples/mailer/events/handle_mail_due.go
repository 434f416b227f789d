package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleMailDue sends a mail.
func (h *MailsHandler) HandleMailDue(ctx context.Context, d outbox.Delivery[MailDue]) error {
	return h.Sender.Send(ctx, d.Payload)
}
