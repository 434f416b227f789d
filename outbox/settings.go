package outbox

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"
)

// Bounds that dispatchers and listeners have in common.
const (
	defaultBatchSize = 100
	maxBatchSize     = 10_000
	defaultLease     = 30 * time.Second
	minLease         = 10 * time.Millisecond
)

// How much a lease of a listener's shard takes: what comes again, one by one, when its process dies.
const (
	leaseBatches   = 8  // batches
	parkedKeyBatch = 20 // parked keys
)

// settings are the fields that the configurations of dispatchers and listeners have in common.
type settings struct {
	batchSize, concurrency, maxAttempts                                          *int
	leaseDuration, pollInterval, maxPollInterval, shutdownTimeout, pruneInterval *time.Duration
	retry                                                                        *Retry
	breaker                                                                      *Breaker
	wake                                                                         *Wake
	logger                                                                       **slog.Logger

	maxConcurrency int
}

// setDefaults fills in what is not set. The others depend on concurrency and leaseDuration, which are set already.
func (s settings) setDefaults() {
	setDefault(s.batchSize, defaultBatchSize)
	setDefault(s.pollInterval, min(time.Second, *s.leaseDuration/3))
	setDefault(s.maxPollInterval, max(min(10*time.Second, *s.leaseDuration/3), *s.pollInterval)) // within the bounds of validate
	setDefault(s.shutdownTimeout, 20*time.Second)
	setDefault(s.pruneInterval, 10*time.Minute)
	setDefault(s.maxAttempts, s.retry.MaxAttempts)
	*s.breaker = breakerWithDefaults(*s.breaker)
	setDefault(s.wake, WakeDoorbell)
	setDefault(s.logger, slog.Default())
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// validate checks the fields, with their defaults filled in.
func (s settings) validate() error {
	if err := validateRetry(*s.retry); err != nil {
		return err
	}
	lease, poll, maxPoll := *s.leaseDuration, *s.pollInterval, *s.maxPollInterval
	switch {
	case *s.batchSize < 1 || *s.batchSize > maxBatchSize:
		return fmt.Errorf("BatchSize %d is not between 1 and %d", *s.batchSize, maxBatchSize)
	case *s.concurrency < 1 || *s.concurrency > s.maxConcurrency:
		return fmt.Errorf("field Concurrency %d is not between 1 and %d", *s.concurrency, s.maxConcurrency)
	case lease < 10*minLease:
		return fmt.Errorf("LeaseDuration %s is shorter than %s", lease, 10*minLease)
	case poll < time.Millisecond || poll > lease/3:
		return fmt.Errorf("PollInterval %s is not between 1ms and a third of LeaseDuration %s", poll, lease)
	case maxPoll < poll || maxPoll > lease/3:
		return fmt.Errorf("MaxPollInterval %s is not between PollInterval %s and a third of LeaseDuration %s", maxPoll, poll, lease)
	case *s.shutdownTimeout < 0:
		return fmt.Errorf("ShutdownTimeout %s is negative", *s.shutdownTimeout)
	case *s.maxAttempts < 0 || *s.maxAttempts > 1<<31-1:
		return fmt.Errorf("MaxAttempts %d is not between 0 and 2147483647", *s.maxAttempts)
	case *s.wake != WakeDoorbell && *s.wake != WakePoll:
		return fmt.Errorf("field Wake %q is neither %q nor %q", *s.wake, WakeDoorbell, WakePoll)
	}
	return validateBreaker(*s.breaker)
}

// overrideRetry returns r with the fields of by that are set.
func overrideRetry(r, by Retry) Retry {
	return Retry{
		MaxAttempts: cmp.Or(by.MaxAttempts, r.MaxAttempts),
		BaseDelay:   cmp.Or(by.BaseDelay, r.BaseDelay),
		MaxDelay:    cmp.Or(by.MaxDelay, r.MaxDelay),
	}
}

// validateRetry checks an override of a config, where zero is what the YAML says.
func validateRetry(r Retry) error {
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

// retryWithDefaults returns r with the defaults for what is not set.
func retryWithDefaults(r Retry) Retry {
	if r.MaxAttempts <= 0 {
		r.MaxAttempts = DefaultMaxAttempts
	}
	if r.BaseDelay <= 0 {
		r.BaseDelay = time.Second
	}
	if r.MaxDelay <= 0 {
		r.MaxDelay = 30 * time.Minute
	}
	return r
}

// retentionWithDefaults returns r with the defaults for what is not set.
func retentionWithDefaults(r Retention) Retention {
	switch {
	case r.DeleteOnAck:
		r.Delivered = 0 // what was delivered before the topic was changed is pruned
	case r.Delivered <= 0:
		r.Delivered = 168 * time.Hour
	}
	if r.Dead <= 0 {
		r.Dead = 720 * time.Hour
	}
	return r
}

// breakerWithDefaults returns b with the defaults for what is not set.
func breakerWithDefaults(b Breaker) Breaker {
	if b.Failures == 0 {
		b.Failures = 10
	}
	if b.FirstPause == 0 {
		b.FirstPause = 100 * time.Millisecond
	}
	if b.MaxPause == 0 {
		b.MaxPause = max(1500*time.Millisecond, b.FirstPause)
	}
	return b
}

func validateBreaker(b Breaker) error {
	switch {
	case b.FirstPause < time.Millisecond || b.FirstPause > time.Hour:
		return fmt.Errorf("field Breaker: FirstPause %s is not between 1ms and 1h", b.FirstPause)
	case b.MaxPause < b.FirstPause || b.MaxPause > time.Hour:
		return fmt.Errorf("field Breaker: MaxPause %s is not between FirstPause %s and 1h", b.MaxPause, b.FirstPause)
	}
	return nil
}
