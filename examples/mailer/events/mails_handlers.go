package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// Sender sends mails. Its methods are called again if events are delivered again, and must then send nothing.
type Sender interface {
	Send(ctx context.Context, m MailDue) error
	// SendDigests may fail some of ds by an outbox.BatchError.
	SendDigests(ctx context.Context, ds []outbox.Delivery[DigestDue]) error
}

// MailsHandler handles the events of namespace mails. Its methods run concurrently.
type MailsHandler struct {
	Sender Sender
}

var _ MailsHandlers = (*MailsHandler)(nil)
