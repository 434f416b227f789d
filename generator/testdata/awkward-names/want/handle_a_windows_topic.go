package outbox

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleAWindows handles one mini_linux/a_windows event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *MiniLinuxHandler) HandleAWindows(ctx context.Context, d outbox.Delivery[AWindows]) error {
	return outbox.Unimplemented("mini_linux/a_windows")
}
