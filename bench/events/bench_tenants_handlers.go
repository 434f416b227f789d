package events

import "context"

// BenchTenantsHandler passes the events of namespace bench_tenants to Work.
type BenchTenantsHandler struct {
	Work func(ctx context.Context, seq int64)
}

var _ BenchTenantsHandlers = (*BenchTenantsHandler)(nil)
