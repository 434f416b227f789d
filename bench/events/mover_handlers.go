package events

import "context"

// MoverHandler passes the events of listener mover to Work.
type MoverHandler struct {
	Work func(ctx context.Context, seq int64)
}

var _ MoverHandlers = (*MoverHandler)(nil)
