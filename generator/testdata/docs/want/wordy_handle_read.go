package docs

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/outboxgen/outboxgen/outbox"
)

// HandleRead handles one logs/read event.
// What it writes with tx takes effect exactly once. It must not commit or roll back tx. What it does elsewhere
// may happen more than once. Until it is written, the events of the topic wait, no attempt is charged, and the
// log says so at level ERROR.
func (h *WordyHandler) HandleRead(ctx context.Context, tx pgx.Tx, d outbox.Delivery[Read]) error {
	return outbox.Unimplemented("logs/read")
}
