package events

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/outboxgen/outboxgen/outbox"
)

// HandleThreadClosed handles one threads/thread_closed event.
// What it writes with tx takes effect exactly once. It must not commit or roll back tx. What it does elsewhere
// may happen more than once. Until it is written, the events of the topic wait, no attempt is charged, and the
// log says so at level ERROR.
func (h *CompanionHandler) HandleThreadClosed(ctx context.Context, tx pgx.Tx, d outbox.Delivery[ThreadClosed]) error {
	return outbox.Unimplemented("threads/thread_closed")
}
