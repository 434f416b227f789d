package outbox

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleBAmd64Test handles one mini_linux/b_amd64_test event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *MiniLinuxHandler) HandleBAmd64Test(ctx context.Context, d outbox.Delivery[BAmd64Test]) error {
	return outbox.Unimplemented("mini_linux/b_amd64_test")
}
