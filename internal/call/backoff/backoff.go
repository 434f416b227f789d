// Package backoff computes delays of attempts, pauses and periodic work, with jitter.
package backoff

import (
	"math/rand/v2"
	"time"
)

// Jitter returns a random duration from 0 to d. nil is UpTo. What must be repeatable has one that depends on a seed.
type Jitter func(d time.Duration) time.Duration

// UpTo is the function UpTo with this jitter.
func (j Jitter) UpTo(d time.Duration) time.Duration {
	if j == nil {
		return UpTo(d)
	}
	return j(d)
}

// Delay is the function Delay with this jitter.
func (j Jitter) Delay(base, limit time.Duration, attempt int) time.Duration {
	delay := limit
	if shift := max(attempt, 1) - 1; shift < 63 && base <= limit>>shift {
		delay = base << shift
	}
	return delay/2 + j.UpTo(delay-delay/2)
}

// Within is the function Within with this jitter.
func (j Jitter) Within(d time.Duration) time.Duration { return d - j.UpTo(d/5) }

// Retry returns the pause after the given number of failures in a row to reach a database, of at most LongestPause.
func (j Jitter) Retry(failures int) time.Duration { return j.Delay(firstPause, LongestPause, failures) }

// Delay is exponential with equal jitter: min(base*2^(attempt-1), limit), then uniform in its upper half
// (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/). Attempts count from 1.
func Delay(base, limit time.Duration, attempt int) time.Duration {
	return Jitter(nil).Delay(base, limit, attempt)
}

const (
	firstPause = 50 * time.Millisecond
	// LongestPause keeps the first delivery within two seconds of the database's return.
	LongestPause = time.Second
)

// Retrier spaces out the attempts to reach a database that fails. The zero value is ready. It is not for concurrent
// use.
type Retrier struct{ tries int }

// Next returns the next pause, of at most LongestPause.
func (r *Retrier) Next() time.Duration {
	r.tries++
	return Jitter(nil).Retry(r.tries)
}

// Tries returns how often Next was called since the last Reset.
func (r *Retrier) Tries() int { return r.tries }

// Reset records that the database works again.
func (r *Retrier) Reset() { r.tries = 0 }

// UpTo returns a random duration from 0 to d.
func UpTo(d time.Duration) time.Duration { return rand.N(d + 1) }

// Around returns a random duration from 0.8 to 1.2 of d, so that replicas do not act at the same time.
func Around(d time.Duration) time.Duration { return d - d/5 + UpTo(2*(d/5)) }

// Within returns a random duration from 0.8 of d to d: use it instead of Around if d must not be exceeded.
func Within(d time.Duration) time.Duration { return Jitter(nil).Within(d) }
