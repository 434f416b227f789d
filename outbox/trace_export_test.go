package outbox

import (
	"context"

	"github.com/outboxgen/outboxgen/internal/call/cause"
)

// TraceHeaders is for tests.
var TraceHeaders = traceHeaders

// Filled returns what an enqueue encodes.
func Filled(p any) any { return filled(p) }

// ChainHeaders is what an enqueue with ctx makes of headers.
func ChainHeaders(ctx context.Context, headers map[string]string) map[string]string {
	return chainOf(cause.Of(ctx)).addTo(headers)
}
