package queue

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/machine/testsignal"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// TestSignals are the steps of a dispatcher that tests wait for. Each channel holds one signal.
type TestSignals struct {
	Idle, Refused, Renewed, Lost, Maintained, Paused <-chan struct{}
}

// Watch makes d send signals. It must be called before d runs.
func Watch(d *Dispatcher) TestSignals {
	s := &d.signals
	for _, signal := range []*testsignal.Signal{&s.idle, &s.refused, &s.renewed, &s.lost, &s.maintained, &s.paused} {
		*signal = make(testsignal.Signal, 1)
	}
	return TestSignals{Idle: s.idle, Refused: s.refused, Renewed: s.renewed, Lost: s.lost, Maintained: s.maintained, Paused: s.paused}
}

// LimitLastAttempt sets how long a reclaimed event on its last attempt stops other claims.
func LimitLastAttempt(of *Dispatcher, d time.Duration) { of.lastAttemptLimit = d }

// ConfigOf returns the configuration of d with its defaults filled in.
func ConfigOf(d *Dispatcher) Config { return d.cfg }

// Sweep runs a sweep of d, which has inFlight in flight.
func Sweep(ctx context.Context, d *Dispatcher, inFlight []uuid.UUID) (died, noted int, err error) {
	c := d.scope()
	c.InFlight = inFlight
	return d.store.sweep(ctx, c, d.grace(), nil)
}

// Grace is how long a sweep of d waits for the holder of an event that it has noted.
func Grace(d *Dispatcher) time.Duration { return d.grace() }

// Declare declares the limits of d, as a start does.
func Declare(ctx context.Context, d *Dispatcher) error { return d.declareLimits(ctx, d.topics) }

// File gives events the turns that the limits of d need.
func File(ctx context.Context, d *Dispatcher) error { return d.fileAll(ctx, nil) }

// PruneUsage deletes keys of which nothing is used.
func PruneUsage(ctx context.Context, d *Dispatcher) error {
	_, err := d.pruneUsage(ctx, queries.LimitPruneRow{})
	return err
}
