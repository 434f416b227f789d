package outbox

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/dbschema"
	"github.com/outboxgen/outboxgen/internal/doorbell"
	"github.com/outboxgen/outboxgen/internal/testsignal"
)

// TestSignals are the moments of a dispatcher that tests wait for. Each holds one.
type TestSignals struct {
	Idle, Refused, Renewed, Lost, Maintained <-chan struct{}
}

// Watch lets d signal. It must be called before d runs.
func Watch(d *Dispatcher) TestSignals {
	s := &d.signals
	s.idle, s.refused, s.renewed, s.lost, s.maintained = make(testsignal.Signal, 1), make(testsignal.Signal, 1), make(testsignal.Signal, 1), make(testsignal.Signal, 1), make(testsignal.Signal, 1)
	return TestSignals{Idle: s.idle, Refused: s.refused, Renewed: s.renewed, Lost: s.lost, Maintained: s.maintained}
}

// LimitLastAttempt makes d how long a reclaimed event on its last attempt keeps others waiting.
func LimitLastAttempt(of *Dispatcher, d time.Duration) { of.lastAttemptLimit = d }

// ConfigOf returns the configuration of d with its defaults filled in.
func ConfigOf(d *Dispatcher) DispatcherConfig { return d.cfg }

// BellOf returns the lock and the channel of the doorbell of a namespace in the schema outbox.
func BellOf(namespace string) (key int64, channel string) {
	db, err := dbschema.Open("")
	if err != nil {
		panic(err)
	}
	b := doorbell.Of(db, namespace)
	return b.Key, b.Channel
}

// RetryWithDefaults returns r as it is used.
func RetryWithDefaults(r Retry) Retry { return retryWithDefaults(r) }

// Sweep is a sweep of d, which holds held.
func Sweep(ctx context.Context, d *Dispatcher, inFlight []uuid.UUID) (died, noted int, err error) {
	c := d.scope()
	c.inFlight = inFlight
	return d.store.sweep(ctx, c, d.grace())
}

// Grace is how long a sweep of d gives the holder of what it has noted.
func Grace(d *Dispatcher) time.Duration { return d.grace() }

// Filled returns what an enqueue encodes.
func Filled(p any) any { return filled(p) }

// BreakerWithDefaults returns b as it is used.
func BreakerWithDefaults(b Breaker) Breaker { return breakerWithDefaults(b) }
