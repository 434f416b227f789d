package events

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleMessageCreated asks the companion to answer a message of a user. It writes the request with tx, in which the
// cursor also moves past the message, so there is exactly one request, however often the listener restarts. Answering
// may take long and may fail, so it is a separate job.
func (h *CompanionHandler) HandleMessageCreated(ctx context.Context, tx pgx.Tx, d outbox.Delivery[MessageCreated]) error {
	if d.Payload.Role != RoleUser {
		return nil // a companion that answered itself would never end
	}
	// A duplicate means that the request was written before the cursor was rewound.
	_, err := EnqueueReplyRequested(ctx, tx, ReplyRequested{
		TenantID: d.Payload.TenantID, ThreadID: d.Payload.ThreadID, MessageID: d.Payload.MessageID,
	})
	return err
}
