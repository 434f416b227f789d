package runtimetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// Restful requires that a check of length look is followed by a pause of four times that length, once a few checks have
// been measured. A doorbell rings when it has connected, which causes a check without a pause; refused reports a
// request after that.
func Restful(t *testing.T, refused <-chan struct{}, began <-chan time.Time, look time.Duration) {
	t.Helper()
	if refused != nil {
		for range 3 { // the ring arrives after the first check at the latest
			pgtest.Receive(t, refused, "a refusal")
		}
	}
	for len(began) > 0 {
		<-began
	}
	last := pgtest.Receive(t, began, "the first check")
	gap := func() time.Duration {
		next := pgtest.Receive(t, began, "a check")
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
