package outbox

import (
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
	*s.breaker = s.breaker.withDefaults()
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
	if err := s.retry.validate(); err != nil {
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
	return s.breaker.validate()
}
