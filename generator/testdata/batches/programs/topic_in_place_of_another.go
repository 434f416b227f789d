package program

import (
	"context"

	"example.com/events"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// The handler of one topic cannot be that of another.
func program(h func(context.Context, []outbox.Delivery[events.MailReceived]) error) queue.Handler {
	return queue.HandleBatch(events.DigestDueTopic, h, h) // error: type func(context.Context, []outbox.Delivery[events.MailReceived]) error of h does not match
}
