package outbox

import "time"

// Breaker says when failures count as an outage, and how a dispatcher or listener waits for its end. The zero value has
// good defaults.
//
// While a topic or a destination is unavailable it rests: its events wait, no attempt is charged, and one event is
// tried after each pause. A rest begins when a handler or a Publisher returns Unavailable, or when different events of
// one destination fail in a row. Everything else is delivered as usual.
type Breaker struct {
	// Failures is how many different events of one destination must fail in a row, with none delivered between them,
	// for the destination to be unavailable. 0 means 10, negative never. It does not concern handlers, whose errors are
	// those of their events.
	Failures int
	// FirstPause is the first pause between two tries. Pauses double up to MaxPause. 0 means 100 ms and 1.5 s. MaxPause is
	// also the longest time that passes before the end of an outage is noticed.
	FirstPause, MaxPause time.Duration
}
