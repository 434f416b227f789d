package config

import (
	"context"
	"fmt"

	"github.com/outboxgen/outboxgen/outbox"
)

// DrainContext returns a context that ends with ctx, or when the time of limit is over. The caller calls cancel. The
// error names the field of limit that is out of bounds.
func DrainContext(
	ctx context.Context, limit outbox.DrainLimit,
) (bounded context.Context, cancel context.CancelFunc, err error) {
	switch {
	case limit.Events < 0:
		return nil, nil, fmt.Errorf("limit: Events %d is negative: 0 means any number", limit.Events)
	case limit.Time < 0:
		return nil, nil, fmt.Errorf("limit: Time %s is negative: 0 means any time", limit.Time)
	case limit.Time == 0:
		bounded, cancel = context.WithCancel(ctx)
	default:
		bounded, cancel = context.WithTimeout(ctx, limit.Time)
	}
	return bounded, cancel, nil
}
