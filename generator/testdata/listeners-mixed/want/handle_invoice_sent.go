package shop

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleInvoiceSent handles one invoices/sent event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *InvoicesHandler) HandleInvoiceSent(ctx context.Context, d outbox.Delivery[InvoiceSent]) error {
	return outbox.Unimplemented("invoices/sent")
}
