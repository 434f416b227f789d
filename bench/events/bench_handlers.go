package events

import "context"

// BenchHandler passes the events of namespace bench to Work.
type BenchHandler struct {
	Work func(ctx context.Context, seq int64)
}

var _ BenchHandlers = (*BenchHandler)(nil)
