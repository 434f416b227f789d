package shop

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleInvoiceCreated handles one invoices/created event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *InvoicesHandler) HandleInvoiceCreated(ctx context.Context, d outbox.Delivery[InvoiceCreated]) error {
	return outbox.Unimplemented("invoices/created")
}
