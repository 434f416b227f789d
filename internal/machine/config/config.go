// Package config has the defaults and bounds of the fields that the configurations of dispatchers and listeners have
// in common.
package config

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/outboxgen/outboxgen/outbox"
)

// Bounds that dispatchers and listeners have in common.
const (
	DefaultBatchSize = 100
	MaxBatchSize     = 10_000
	DefaultLease     = 30 * time.Second
	MinLease         = 10 * time.Millisecond
)

// How much a lease of a listener's shard takes. If its process dies, this is delivered again, one by one or in small batches.
const (
	LeaseBatches      = 8  // batches
	RelayLeaseBatches = 64 // likewise, of a listener that publishes and whose batches grow
	ParkedKeyBatch    = 20 // parked keys
)

// Common holds the fields that the configurations of dispatchers and listeners have in common.
type Common struct {
	BatchSize, Concurrency, MaxAttempts                                          *int
	LeaseDuration, PollInterval, MaxPollInterval, ShutdownTimeout, PruneInterval *time.Duration
	Retry                                                                        *outbox.Retry
	Breaker                                                                      *outbox.Breaker
	Wake                                                                         *outbox.Wake
	Middleware                                                                   *[]outbox.Middleware
	Logger                                                                       **slog.Logger

	MaxConcurrency int
}

// SetDefaults fills in the fields that are not set. They depend on Concurrency and LeaseDuration, which must be set
// already.
func (s Common) SetDefaults() {
	SetDefault(s.BatchSize, DefaultBatchSize)
	SetDefault(s.PollInterval, min(time.Second, *s.LeaseDuration/3))
	// within the bounds of validate
	SetDefault(s.MaxPollInterval, max(min(10*time.Second, *s.LeaseDuration/3), *s.PollInterval))
	SetDefault(s.ShutdownTimeout, 20*time.Second)
	SetDefault(s.PruneInterval, 10*time.Minute)
	SetDefault(s.MaxAttempts, s.Retry.MaxAttempts)
	*s.Breaker = BreakerWithDefaults(*s.Breaker)
	SetDefault(s.Wake, outbox.WakeDoorbell)
	SetDefault(s.Logger, slog.Default())
	*s.Middleware = slices.Clone(*s.Middleware)
}

func SetDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate checks the fields, with their defaults filled in.
func (s Common) Validate() error {
	if err := validateRetry(*s.Retry); err != nil {
		return err
	}
	lease, poll, maxPoll := *s.LeaseDuration, *s.PollInterval, *s.MaxPollInterval
	switch {
	case *s.BatchSize < 1 || *s.BatchSize > MaxBatchSize:
		return fmt.Errorf("BatchSize %d is not between 1 and %d", *s.BatchSize, MaxBatchSize)
	case *s.Concurrency < 1 || *s.Concurrency > s.MaxConcurrency:
		return fmt.Errorf("field Concurrency %d is not between 1 and %d", *s.Concurrency, s.MaxConcurrency)
	case lease < 10*MinLease:
		return fmt.Errorf("LeaseDuration %s is shorter than %s", lease, 10*MinLease)
	case poll < time.Millisecond || poll > lease/3:
		return fmt.Errorf("PollInterval %s is not between 1ms and a third of LeaseDuration %s", poll, lease)
	case maxPoll < poll || maxPoll > lease/3:
		return fmt.Errorf("MaxPollInterval %s is not between PollInterval %s and a third of LeaseDuration %s", maxPoll,
			poll, lease)
	case *s.ShutdownTimeout < 0:
		return fmt.Errorf("ShutdownTimeout %s is negative", *s.ShutdownTimeout)
	case *s.MaxAttempts < 0 || *s.MaxAttempts > 1<<31-1:
		return fmt.Errorf("MaxAttempts %d is not between 0 and 2147483647", *s.MaxAttempts)
	case *s.Wake != outbox.WakeDoorbell && *s.Wake != outbox.WakePoll:
		return fmt.Errorf("field Wake %q is neither %q nor %q", *s.Wake, outbox.WakeDoorbell, outbox.WakePoll)
	}
	for i, m := range *s.Middleware {
		if m == nil {
			return fmt.Errorf("field Middleware: function %d of %d is nil", i+1, len(*s.Middleware))
		}
	}
	return validateBreaker(*s.Breaker)
}

// OverrideRetry returns r with the fields of by that are set.
func OverrideRetry(r, by outbox.Retry) outbox.Retry {
	return outbox.Retry{
		MaxAttempts: cmp.Or(by.MaxAttempts, r.MaxAttempts),
		BaseDelay:   cmp.Or(by.BaseDelay, r.BaseDelay),
		MaxDelay:    cmp.Or(by.MaxDelay, r.MaxDelay),
	}
}

// validateRetry checks an override of a config, where zero means the YAML's value.
func validateRetry(r outbox.Retry) error {
	switch {
	case r.MaxAttempts < 0 || r.MaxAttempts > 1<<31-1:
		return fmt.Errorf("Retry.MaxAttempts %d is not between 0 and 2147483647", r.MaxAttempts)
	case r.BaseDelay < 0:
		return fmt.Errorf("Retry.BaseDelay %s is negative", r.BaseDelay)
	case r.MaxDelay < 0:
		return fmt.Errorf("Retry.MaxDelay %s is negative", r.MaxDelay)
	case r.MaxDelay > 0 && r.BaseDelay > r.MaxDelay:
		return fmt.Errorf("Retry.BaseDelay %s is longer than Retry.MaxDelay %s", r.BaseDelay, r.MaxDelay)
	}
	return nil
}

// RetryWithDefaults returns r with defaults for the fields that are not set.
func RetryWithDefaults(r outbox.Retry) outbox.Retry {
	if r.MaxAttempts <= 0 {
		r.MaxAttempts = outbox.DefaultMaxAttempts
	}
	if r.BaseDelay <= 0 {
		r.BaseDelay = time.Second
	}
	if r.MaxDelay <= 0 {
		r.MaxDelay = 30 * time.Minute
	}
	return r
}

// RetentionWithDefaults returns r with defaults for the fields that are not set.
func RetentionWithDefaults(r outbox.Retention) outbox.Retention {
	switch {
	case r.DeleteOnAck:
		r.Delivered = 0 // events delivered before the topic was changed are pruned
	case r.Delivered <= 0:
		r.Delivered = 168 * time.Hour
	}
	if r.Dead <= 0 {
		r.Dead = 720 * time.Hour
	}
	return r
}

// BreakerWithDefaults returns b with defaults for the fields that are not set.
func BreakerWithDefaults(b outbox.Breaker) outbox.Breaker {
	b.Failures = cmp.Or(b.Failures, 10)
	b.FirstPause = cmp.Or(b.FirstPause, 100*time.Millisecond)
	b.MaxPause = cmp.Or(b.MaxPause, max(1500*time.Millisecond, b.FirstPause))
	return b
}

func validateBreaker(b outbox.Breaker) error {
	switch {
	case b.FirstPause < time.Millisecond || b.FirstPause > time.Hour:
		return fmt.Errorf("field Breaker: FirstPause %s is not between 1ms and 1h", b.FirstPause)
	case b.MaxPause < b.FirstPause || b.MaxPause > time.Hour:
		return fmt.Errorf("field Breaker: MaxPause %s is not between FirstPause %s and 1h", b.MaxPause, b.FirstPause)
	}
	return nil
}
