package outbox

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleCTest handles one db_test/c_test event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *DBTestHandler) HandleCTest(ctx context.Context, d outbox.Delivery[CTest]) error {
	return outbox.Unimplemented("db_test/c_test")
}
