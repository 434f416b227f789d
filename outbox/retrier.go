package outbox

import (
	"errors"
	"math/rand/v2"
	"time"
)

const (
	firstPause = 50 * time.Millisecond
	// longestPause keeps the first delivery within two seconds of the database's return.
	longestPause = time.Second
)

var errShutdown = errors.New("dispatcher is stopping: ShutdownTimeout has passed")

// retrier spaces out the attempts to reach a database that is in trouble.
type retrier struct{ tries int }

func (r *retrier) next() time.Duration {
	r.tries++
	return backoff(firstPause, longestPause, r.tries)
}

func (r *retrier) reset() { r.tries = 0 }

// randomUpTo returns a duration in [0, d].
func randomUpTo(d time.Duration) time.Duration { return rand.N(d + 1) }
