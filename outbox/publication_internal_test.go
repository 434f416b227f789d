package outbox

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

// away is a publisher that is unavailable and counts its calls.
type away struct{ calls int }

func (a *away) Publish(_ context.Context, events []Outgoing) []error {
	a.calls++
	return allFail(len(events), Unavailable(errors.New("connection refused")))
}

// TestPausedPublisherIsNotCalled: what was claimed before is handed back, and does not make the pause longer.
func TestPausedPublisherIsNotCalled(t *testing.T) {
	t.Parallel()
	p := &away{}
	to := &target{broker: "kafka", publisher: p}
	for range 3 {
		errs := to.send(t.Context(), slog.New(slog.DiscardHandler), make([]Outgoing, 2))
		require.Len(t, errs, 2)
		for _, err := range errs {
			require.True(t, handedBack(err))
		}
	}
	require.Equal(t, 1, p.calls)
	require.Equal(t, 1, to.tries)
}
