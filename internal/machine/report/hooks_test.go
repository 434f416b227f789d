package report

import (
	"bytes"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
)

// ends returns n different delivered events.
func ends(n int) []End {
	all := make([]End, n)
	for i := range all {
		all[i] = End{Event: outbox.Event{ID: uuid.New()}, As: outbox.SettledDelivered}
	}
	return all
}

// TestHooksSurviveTheObserver: a call that panics or ends its goroutine costs no other call.
func TestHooksSurviveTheObserver(t *testing.T) {
	t.Parallel()
	for name, misdeed := range map[string]func(){
		"panic":  func() { panic(errors.New("boom")) },
		"goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			calls := 0
			h := NewHooks(&outbox.Observer{Settled: func(outbox.Runner, outbox.Event, outbox.Settlement) {
				calls++
				misdeed()
			}}, outbox.Runner{}, slog.New(slog.NewTextHandler(&log, nil)))
			h.Ended(ends(100))
			require.Equal(t, 100, calls)
			require.Equal(t, 1, strings.Count(log.String(), "observer panicked"), "said once")
		})
	}
}

// TestHooksLeaveAHangingObserver: while one call hangs, the others are dropped; afterwards they are made again.
func TestHooksLeaveAHangingObserver(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	entered, release, calls := make(chan struct{}), make(chan struct{}), new(atomic.Int64)
	h := NewHooks(&outbox.Observer{Settled: func(outbox.Runner, outbox.Event, outbox.Settlement) {
		if calls.Add(1) == 1 {
			close(entered)
			<-release
		}
	}}, outbox.Runner{}, slog.New(slog.NewTextHandler(&log, nil)))
	h.limit = 10 * time.Millisecond
	h.Ended(ends(1))
	for range 100 {
		h.Ended(ends(1))
	}
	<-entered // perhaps only after the limit
	require.EqualValues(t, 1, calls.Load())
	require.Equal(t, 1, strings.Count(log.String(), "observer does not return"))
	close(release)
	require.Eventually(t, func() bool {
		h.Ended(ends(1))
		return calls.Load() > 1
	}, time.Minute, time.Millisecond)
}

// TestHooksCostNothingWithoutAnObserver: neither a nil observer nor nil functions allocate.
func TestHooksCostNothingWithoutAnObserver(t *testing.T) {
	for _, h := range []*Hooks{nil, NewHooks(nil, outbox.Runner{}, nil), NewHooks(&outbox.Observer{}, outbox.Runner{}, nil)} {
		require.Zero(t, testing.AllocsPerRun(100, func() {
			h.Claimed(nil, 0)
			h.Started(t.Context(), nil)
			h.Finished(t.Context(), nil, nil, 0)
			h.Ended(nil)
			h.Resting("", "")
			h.Resumed("", 0)
		}))
	}
}
