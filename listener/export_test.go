package listener

import (
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/machine/testsignal"
)

// TestSignals are the steps of a listener that tests wait for. Each channel holds one signal.
type TestSignals struct {
	Idle, Ended, Lost, Refused, Maintained <-chan struct{}
}

// Watch makes l send signals. It must be called before l runs.
func Watch(l *Listener) TestSignals {
	s := &l.signals
	s.idle, s.ended, s.lost, s.refused, s.maintained = make(testsignal.Signal, 1), make(testsignal.Signal, 1), make(testsignal.Signal, 1), make(testsignal.Signal, 1), make(testsignal.Signal, 1)
	return TestSignals{Idle: s.idle, Ended: s.ended, Lost: s.lost, Refused: s.refused, Maintained: s.maintained}
}

// ConfigOf returns the configuration of l with its defaults filled in.
func ConfigOf(l *Listener) Config { return l.cfg }

// LimitParkedKeys makes n the maximum number of keys that l parks.
func LimitParkedKeys(l *Listener, n int) { l.parkedLimit = int32(n) }

// LimitPauses makes l try a failing database again within d.
func LimitPauses(l *Listener, d time.Duration) { l.pauseLimit = d }

// LimitLeaseAge makes d the maximum age of a lease of l when a batch begins.
func LimitLeaseAge(l *Listener, d time.Duration) { l.leaseAge = d }

// LimitTakeOver makes d the time for which l leaves a shard to its preferred process. It must be called before l runs.
func LimitTakeOver(l *Listener, d time.Duration) { l.takeOverAfter = d }

// WatchContinued makes l signal when a lease continues with a batch that was read ahead. It must be called before l
// runs.
func WatchContinued(l *Listener, heard chan struct{}) { l.signals.continued = heard }

// WatchCarried makes l signal when a lease begins with a batch that the previous one has read ahead. It must be called
// before l runs.
func WatchCarried(l *Listener, heard chan struct{}) { l.signals.carried = heard }

// ThroughPool makes l use another pool. It must be called before l runs.
func ThroughPool(l *Listener, pool *pgxpool.Pool) { l.pool = pool }

// WatchFilling makes l signal when it has found too few events for a batch. It must be called before l runs.
func WatchFilling(l *Listener, heard chan struct{}) { l.signals.filling = heard }

// Sizes are how many events a listener has at once, and how old a lease may be when it continues.
type Sizes struct {
	Grows              bool
	PerLease, Together int
	Age                time.Duration
}

// SizesOf returns those of l.
func SizesOf(l *Listener) Sizes {
	cfg := l.coreConfig()
	return Sizes{Grows: cfg.Grows, PerLease: int(l.maxPerLease()), Together: cfg.Together, Age: cfg.LeaseAge}
}
