package outbox

import "context"

// JoinObservers returns an Observer that tells each of os, in their order, for example one for traces and one for
// metrics. A nil Observer is left out. A panic in one of them keeps the following ones from being told.
func JoinObservers(os ...*Observer) *Observer {
	all := &Observer{}
	for _, o := range os {
		if o == nil {
			continue
		}
		if first, next := all.Enqueuing, o.Enqueuing; first == nil {
			all.Enqueuing = next
		} else if next != nil {
			all.Enqueuing = func(ctx context.Context, namespace, topic string, events int) context.Context {
				if derived := first(ctx, namespace, topic, events); derived != nil {
					ctx = derived
				}
				return next(ctx, namespace, topic, events)
			}
		}
		all.Enqueued = join2(all.Enqueued, o.Enqueued)
		all.Claimed = join3(all.Claimed, o.Claimed)
		all.Started = join3(all.Started, o.Started)
		all.Finished = join5(all.Finished, o.Finished)
		all.Settled = join3(all.Settled, o.Settled)
		all.Lost = join2(all.Lost, o.Lost)
		all.Dead = join3(all.Dead, o.Dead)
		all.Resting = join3(all.Resting, o.Resting)
		all.Resumed = join3(all.Resumed, o.Resumed)
	}
	return all
}

// The functions joinN return a function that calls f and then g, or the one that is not nil.

func join2[A, B any](f, g func(A, B)) func(A, B) {
	switch {
	case f == nil:
		return g
	case g == nil:
		return f
	}
	return func(a A, b B) { f(a, b); g(a, b) }
}

func join3[A, B, C any](f, g func(A, B, C)) func(A, B, C) {
	switch {
	case f == nil:
		return g
	case g == nil:
		return f
	}
	return func(a A, b B, c C) { f(a, b, c); g(a, b, c) }
}

func join5[A, B, C, D, E any](f, g func(A, B, C, D, E)) func(A, B, C, D, E) {
	switch {
	case f == nil:
		return g
	case g == nil:
		return f
	}
	return func(a A, b B, c C, d D, e E) { f(a, b, c, d, e); g(a, b, c, d, e) }
}
