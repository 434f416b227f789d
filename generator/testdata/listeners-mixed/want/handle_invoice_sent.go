package shop

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleInvoiceSent handles one invoices/sent event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *InvoicesHandler) HandleInvoiceSent(ctx context.Context, d outbox.Delivery[InvoiceSent]) error {
	return outbox.Unimplemented("invoices/sent")
}
