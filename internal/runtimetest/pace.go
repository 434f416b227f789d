package runtimetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// Restful demands that checks which take so long are followed by a pause of four times as long, once a few have been measured.
// The doorbell, if there is one, rings when it has connected, for a look without a pause: refused says that it was asked since.
func Restful(t *testing.T, refused <-chan struct{}, began <-chan time.Time, look time.Duration) {
	t.Helper()
	if refused != nil {
		for range 3 { // the ring is heard after the first at the latest
			pgtest.Receive(t, refused, "a refusal")
		}
	}
	for len(began) > 0 {
		<-began
	}
	last := pgtest.Receive(t, began, "the first look")
	gap := func() time.Duration {
		next := pgtest.Receive(t, began, "a look")
		defer func() { last = next }()
		return next.Sub(last)
	}
	for tries := 0; gap() < 5*look; tries++ {
		require.Less(t, tries, 10, "the looks do not pause")
	}
	for range 5 {
		require.GreaterOrEqual(t, gap(), 5*look, "a look, and a pause of four")
	}
}

// IfDoorbell returns refused, nil for who polls.
func IfDoorbell(wake outbox.Wake, refused <-chan struct{}) <-chan struct{} {
	if wake == outbox.WakePoll {
		return nil
	}
	return refused
}
