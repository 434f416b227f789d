package listener

import (
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/testsignal"
)

// TestSignals are the moments of a listener that tests wait for. Each holds one.
type TestSignals struct {
	Idle, Ended, Lost, Refused, Maintained <-chan struct{}
}

// Watch lets l signal. It must be called before l runs.
func Watch(l *Listener) TestSignals {
	s := &l.signals
	s.idle, s.ended, s.lost, s.refused, s.maintained = make(testsignal.Signal, 1), make(testsignal.Signal, 1), make(testsignal.Signal, 1), make(testsignal.Signal, 1), make(testsignal.Signal, 1)
	return TestSignals{Idle: s.idle, Ended: s.ended, Lost: s.lost, Refused: s.refused, Maintained: s.maintained}
}

// ConfigOf returns the configuration of l with its defaults filled in.
func ConfigOf(l *Listener) Config { return l.cfg }

// LimitParkedKeys makes n the most keys that l parks.
func LimitParkedKeys(l *Listener, n int) { l.parkedLimit = int32(n) }

// LimitPauses makes l ask a database in trouble again within d.
func LimitPauses(l *Listener, d time.Duration) { l.pauseLimit = d }

// LimitLeaseAge makes d how old a lease of l may be when a batch begins.
func LimitLeaseAge(l *Listener, d time.Duration) { l.leaseAge = d }

// LimitTakeOver makes d how long l leaves a shard to the process that it is left to.
func LimitTakeOver(l *Listener, d time.Duration) { l.takeOverAfter = d }

// WatchContinued has l signal when a lease goes on with a batch that was read ahead. It must be called before l runs.
func WatchContinued(l *Listener, heard chan struct{}) { l.signals.continued = heard }

// ThroughPool has l use another pool. It must be called before l runs.
func ThroughPool(l *Listener, pool *pgxpool.Pool) { l.pool = pool }
