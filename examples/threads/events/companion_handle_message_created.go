package events

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleMessageCreated asks the companion to answer a message of a user. The request is written with tx, in
// which the cursor moves past the message: there is exactly one, however often the listener starts anew. The
// answer itself takes its time and may fail, which is why it is a job of its own and not made here.
func (h *CompanionHandler) HandleMessageCreated(ctx context.Context, tx pgx.Tx, d outbox.Delivery[MessageCreated]) error {
	if d.Payload.Role != RoleUser {
		return nil // a companion that answered itself would not come to an end
	}
	// A duplicate is a message that was asked for before the cursor was set back.
	_, err := EnqueueReplyRequested(ctx, tx, ReplyRequested{
		TenantID: d.Payload.TenantID, ThreadID: d.Payload.ThreadID, MessageID: d.Payload.MessageID,
	})
	return err
}
