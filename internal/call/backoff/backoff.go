// Package backoff computes delays of attempts, pauses and periodic work, with jitter.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Random returns a random duration from 0 to d. It is the source of jitter; nil means math/rand.
type Random func(d time.Duration) time.Duration

func (random Random) upTo(d time.Duration) time.Duration {
	if random == nil {
		return rand.N(d + 1)
	}
	return random(d)
}

// Delay is exponential with equal jitter: min(base*2^(attempt-1), limit), then uniform in its upper half
// (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/). Attempts count from 1.
func (random Random) Delay(base, limit time.Duration, attempt int) time.Duration {
	delay := limit
	if shift := max(attempt, 1) - 1; shift < 63 && base <= limit>>shift {
		delay = base << shift
	}
	return delay/2 + random.upTo(delay-delay/2)
}

// Within returns a random duration from 0.8 of d to d: use it instead of Around if d must not be exceeded.
func (random Random) Within(d time.Duration) time.Duration { return d - random.upTo(d/5) }

// Delay is Random.Delay with math/rand.
func Delay(base, limit time.Duration, attempt int) time.Duration {
	return Random(nil).Delay(base, limit, attempt)
}

const (
	firstPause = 50 * time.Millisecond
	// LongestPause keeps the first delivery within two seconds of the database's return.
	LongestPause = time.Second
)

// Retrier spaces out the attempts to reach a database that fails. The zero value is ready. It is not for concurrent
// use.
type Retrier struct {
	Random Random
	tries  int
}

// Next returns the next pause, of at most LongestPause.
func (r *Retrier) Next() time.Duration {
	r.tries++
	return r.Random.Delay(firstPause, LongestPause, r.tries)
}

// Tries returns how often Next was called since the last Reset.
func (r *Retrier) Tries() int { return r.tries }

// Reset records that the database works again.
func (r *Retrier) Reset() { r.tries = 0 }

// UpTo returns a random duration from 0 to d.
func UpTo(d time.Duration) time.Duration { return rand.N(d + 1) }

// Around returns a random duration from 0.8 to 1.2 of d, so that replicas do not act at the same time.
func Around(d time.Duration) time.Duration { return d - d/5 + UpTo(2*(d/5)) }

// Within is Random.Within with math/rand.
func Within(d time.Duration) time.Duration { return Random(nil).Within(d) }

// UpTo is the function UpTo with this source.
func (random Random) UpTo(d time.Duration) time.Duration { return random.upTo(d) }

// Retry is the pause after so many failures in a row to reach a database, of at most LongestPause.
func (random Random) Retry(failures int) time.Duration {
	return random.Delay(firstPause, LongestPause, failures)
}

// Sleep waits. It returns early when ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
