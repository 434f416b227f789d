package events

import "context"

// BenchDropHandler passes the events of namespace bench_drop to Work.
type BenchDropHandler struct {
	Work func(ctx context.Context, seq int64)
}

var _ BenchDropHandlers = (*BenchDropHandler)(nil)
