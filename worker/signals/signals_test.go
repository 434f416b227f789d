package signals_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/worker/signals"
)

// signalVariable makes TestSignalChild a child process.
const signalVariable = "OUTBOXGEN_TEST_SIGNALS"

type signalOrders struct {
	ParentEnds bool // the program stops without a signal
}

// TestSignalChild is not a test but the main function of the child processes: a program that stops when it is
// told to, and that has stopped when it reads a line.
func TestSignalChild(t *testing.T) {
	text := os.Getenv(signalVariable)
	if text == "" {
		return
	}
	var o signalOrders
	require.NoError(t, json.Unmarshal([]byte(text), &o))
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	ctx := signals.Context(parent)
	if o.ParentEnds {
		cancel()
	}
	fmt.Println("runs")
	<-ctx.Done()
	fmt.Println("stops")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// signalled starts a child, and sends it the first signal as soon as it runs. It returns when the child stops.
func signalled(t *testing.T, first syscall.Signal) *runtimetest.Child {
	t.Helper()
	c := runtimetest.Spawn(t, "TestSignalChild", signalVariable, signalOrders{})
	require.NotEmpty(t, c.Await(t, "runs"))
	c.Signal(t, first)
	require.NotEmpty(t, c.Await(t, "stops"))
	return c
}

// end waits until the child has ended, and returns what Wait returns.
func end(t *testing.T, c *runtimetest.Child) error {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	return pgtest.Receive(t, ended, "the end of the child")
}

// untilItEnds sends a signal again and again, until the child has ended, and returns what Wait returns.
func untilItEnds(t *testing.T, c *runtimetest.Child, s syscall.Signal) error {
	t.Helper()
	enough, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for again := time.NewTicker(100 * time.Microsecond); ; {
			select {
			case <-enough:
				again.Stop()
				return
			case <-again.C:
				_ = c.Cmd.Process.Signal(s) // the only error is that it has already ended
			}
		}
	}()
	defer func() {
		close(enough)
		<-stopped
	}()
	return end(t, c)
}

// requireInterrupted checks that an interrupt has ended a process, which a shell shows as the status 130.
func requireInterrupted(t *testing.T, err error) {
	t.Helper()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	status, ok := exit.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	require.True(t, status.Signaled(), err)
	require.Equal(t, syscall.SIGINT, status.Signal())
}

const (
	term      = syscall.SIGTERM
	interrupt = syscall.SIGINT
)

// TestSignalsStopGracefully: any number of SIGTERMs, with one interrupt before, between or after them, is one graceful stop.
func TestSignalsStopGracefully(t *testing.T) {
	t.Parallel()
	for _, signals := range [][]syscall.Signal{
		{term}, {interrupt}, {term, term, term}, {term, interrupt}, {interrupt, term, term}, {term, interrupt, term},
	} {
		t.Run(strings.ReplaceAll(fmt.Sprint(signals), " ", "_"), func(t *testing.T) {
			t.Parallel()
			c := signalled(t, signals[0])
			for _, s := range signals[1:] {
				c.Signal(t, s)
			}
			c.Tell(t, "end")
			require.NoError(t, end(t, c))
		})
	}
}

// TestSecondInterruptEndsAtOnce: an interrupt of a program that stops, and hangs, ends it if it is the second one.
func TestSecondInterruptEndsAtOnce(t *testing.T) {
	t.Parallel()
	c := signalled(t, interrupt)
	c.Signal(t, interrupt)
	requireInterrupted(t, end(t, c))

	c = signalled(t, interrupt)
	c.Signal(t, term)
	c.Signal(t, interrupt)
	requireInterrupted(t, end(t, c))

	c = signalled(t, term)
	requireInterrupted(t, untilItEnds(t, c, interrupt)) // nothing shows that the first one has arrived
}

// TestSIGTERMWhileTheProcessExits: the signals come until the process is gone.
func TestSIGTERMWhileTheProcessExits(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for range 50 {
		c := signalled(t, term)
		c.Tell(t, "end")
		require.NoError(t, untilItEnds(t, c, term))
	}
}

// TestContextEndsWithItsParent, and SIGTERM has no effect after that either.
func TestContextEndsWithItsParent(t *testing.T) {
	t.Parallel()
	c := runtimetest.Spawn(t, "TestSignalChild", signalVariable, signalOrders{ParentEnds: true})
	require.NotEmpty(t, c.Await(t, "stops"))
	c.Signal(t, term)
	c.Tell(t, "end")
	require.NoError(t, end(t, c))
}

func TestMain(m *testing.M) { runtimetest.Main(m) }
