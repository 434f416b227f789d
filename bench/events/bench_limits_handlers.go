package events

import "context"

// BenchLimitsHandler passes the events of namespace bench_limits to Work.
type BenchLimitsHandler struct {
	Work func(ctx context.Context, seq int64)
}

var _ BenchLimitsHandlers = (*BenchLimitsHandler)(nil)
