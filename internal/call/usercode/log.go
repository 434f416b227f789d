package usercode

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// logLimit is how long a line may take to be logged before its caller continues without it.
const logLimit = time.Second

// Logger returns a logger that writes to log but does not depend on it: a slog.Handler that panics, ends its goroutine
// or hangs costs its caller at most a second. While one line hangs, the others are dropped and counted.
func Logger(log *slog.Logger) *slog.Logger {
	if _, already := log.Handler().(*logHandler); already {
		return log
	}
	return slog.New(&logHandler{to: log.Handler(), state: &logState{limit: logLimit}})
}

// logHandler passes each line to another handler, in a goroutine that it waits for.
type logHandler struct {
	to    slog.Handler
	state *logState
}

// logState is shared by a handler and those derived from it.
type logState struct {
	limit   time.Duration
	stuck   atomic.Bool
	dropped atomic.Int64
}

// Enabled drops lines while one hangs. Otherwise it is true, and Handle calls the other handler's Enabled, where it is
// guarded.
func (h *logHandler) Enabled(context.Context, slog.Level) bool {
	return !h.state.stuck.Load() || h.drop()
}

// drop counts a line that is not passed on.
func (h *logHandler) drop() bool {
	h.state.dropped.Add(1)
	return false
}

// Handle passes r on. It returns no error, because there is nobody to handle one.
func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	r = r.Clone()
	over := make(chan struct{})
	go Run("logger", func() error {
		if !h.to.Enabled(ctx, r.Level) {
			return nil
		}
		if n := h.state.dropped.Swap(0); n > 0 {
			r.AddAttrs(slog.Int64("dropped_lines", n))
		}
		return h.to.Handle(ctx, r)
	}, func(error) {
		close(over)
		h.state.stuck.Store(false)
	})
	timer := time.NewTimer(h.state.limit)
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
		h.state.stuck.Store(true)
		select {
		case <-over: // it returned at the last moment
			h.state.stuck.Store(false)
		default:
		}
	}
	return nil
}

// WithAttrs implements slog.Handler.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.derive(func() slog.Handler { return h.to.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (h *logHandler) WithGroup(name string) slog.Handler {
	return h.derive(func() slog.Handler { return h.to.WithGroup(name) })
}

// derive returns a handler that passes lines to the result of call, or to the present handler if call fails.
func (h *logHandler) derive(call func() slog.Handler) slog.Handler {
	derived := make(chan slog.Handler, 1)
	err := Call("logger", h.state.limit, func() error {
		derived <- call()
		return nil
	})
	if err != nil {
		return h
	}
	if to := <-derived; to != nil {
		return &logHandler{to: to, state: h.state}
	}
	return h
}
