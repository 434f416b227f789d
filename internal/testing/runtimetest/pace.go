package runtimetest

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// SlowChecks makes each statement that g watches take look longer, and one of four six times as long. It returns the
// moments at which these delays end.
func SlowChecks(g *Gate, look time.Duration) <-chan time.Time {
	var n atomic.Int64
	ended := make(chan time.Time, 1000)
	g.OnPass(func() {
		d := look
		if n.Add(1)%4 == 0 {
			d *= 6
		}
		<-time.After(d) // as if the database took this long
		ended <- time.Now()
	})
	return ended
}

// Restful requires that a check of length look is followed by a pause of four times that length, once a few checks have
// been measured. A doorbell rings when it has connected, which causes a check without a pause; refused reports a
// request after that.
func Restful(t *testing.T, refused <-chan struct{}, ended <-chan time.Time, look time.Duration) {
	t.Helper()
	if refused != nil {
		for range 3 { // the ring arrives after the first check at the latest
			pgtest.Receive(t, refused, "a refusal")
		}
	}
	for len(ended) > 0 {
		<-ended
	}
	last := pgtest.Receive(t, ended, "the first check")
	gap := func() time.Duration {
		next := pgtest.Receive(t, ended, "a check")
		defer func() { last = next }()
		return next.Sub(last)
	}
	// The first checks do not pause yet, and one of them may take long by itself: so two long gaps in a row are awaited.
	for tries, calm := 0, 0; calm < 2; tries++ {
		if calm++; gap() < 5*look {
			calm = 0
		}
		require.Less(t, tries, 12, "the checks do not pause")
	}
	for range 5 {
		require.GreaterOrEqual(t, gap(), 5*look, "a check, and a pause of four times its length")
	}
}

// IfDoorbell returns refused, or nil if wake is polling.
func IfDoorbell(wake outbox.Wake, refused <-chan struct{}) <-chan struct{} {
	if wake == outbox.WakePoll {
		return nil
	}
	return refused
}
