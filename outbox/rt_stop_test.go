package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
)

// hung keeps what hangs until the tests are over, when it comes back late.
var hung = make(chan struct{})

// comingBack lets what hangs in the tests return before it is looked for what is left.
type comingBack struct{ *testing.M }

// Run implements goleak.TestingM.
func (m comingBack) Run() int {
	defer close(hung)
	return m.M.Run()
}

const stopTimeout = 4 * time.Second

const stopBound = stopTimeout + 2*time.Second

const stopSlack = 3 * time.Second

// hanging is a publisher that heeds nothing.
type hanging struct{ called, open chan struct{} }

func (h hanging) Publish(_ context.Context, events []outbox.Outgoing) []error {
	close(h.called)
	<-h.open
	return make([]error, len(events))
}

// stopsInTime ends ctx of a run and demands that it returns within its bound.
func stopsInTime(t testing.TB, cancel context.CancelFunc, over <-chan error) error {
	t.Helper()
	begin := time.Now()
	cancel()
	err := receive(t, over, "the end of Run")
	require.Less(t, time.Since(begin), stopBound+stopSlack)
	return err
}
