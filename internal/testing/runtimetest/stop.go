package runtimetest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/publish"
)

// Hung blocks hanging calls until the tests are over.
var Hung = make(chan struct{})

// Main runs the tests of a package and fails if they leave a goroutine behind.
func Main(m *testing.M) {
	goleak.VerifyTestMain(releasing{m}, goleak.IgnoreAnyFunction(pgtest.Supervisor))
}

// releasing lets what hangs in the tests return, and ends the last example, before the goroutines that are left are
// counted.
type releasing struct{ *testing.M }

// Run implements goleak.TestingM.
func (m releasing) Run() int {
	defer close(Hung)
	defer pgtest.EndExamples()
	return m.M.Run()
}

// Bounds of a stop. Run promises to return two seconds after its timeout; the slack is for a busy machine. It is
// shorter than a second timeout, or a statement that nothing cuts off.
const (
	StopTimeout = 4 * time.Second
	StopSlack   = 3 * time.Second

	stopBound = StopTimeout + 2*time.Second
)

// Hanging is a publisher that ignores its context.
type Hanging struct{ Called, Open chan struct{} }

func (h Hanging) Publish(_ context.Context, events []publish.Outgoing) []error {
	close(h.Called)
	<-h.Open
	return make([]error, len(events))
}

// StopsInTime ends the context of a run and requires that the run returns within its bound.
func StopsInTime(t testing.TB, cancel context.CancelFunc, over <-chan error) error {
	t.Helper()
	begin := time.Now()
	cancel()
	err := pgtest.Receive(t, over, "the end of Run")
	require.Less(t, time.Since(begin), stopBound+StopSlack)
	return err
}
