package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleIdentityLinked puts the identity into the directory.
func (h *ContactsHandler) HandleIdentityLinked(ctx context.Context, d outbox.Delivery[IdentityLinked]) error {
	return h.Directory.Put(ctx, d.Payload)
}
