package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleDigestDueBatch sends several digests in one call of the provider.
func (h *MailsHandler) HandleDigestDueBatch(ctx context.Context, ds []outbox.Delivery[DigestDue]) error {
	return h.Sender.SendDigests(ctx, ds)
}
