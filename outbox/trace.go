package outbox

import (
	"context"
	"maps"
	"strings"
)

// Headers of W3C Trace Context (https://www.w3.org/TR/trace-context/), and the length of a tracestate up to which every
// system must forward it.
const (
	traceparentHeader = "traceparent"
	tracestateHeader  = "tracestate"
	maxTracestate     = 512
)

// traceKey is where a context keeps its trace function.
type traceKey struct{}

// ContextWithTrace returns a copy of ctx that adds a trace to the events that are enqueued with it or with a context
// derived from it. Each Enqueue and EnqueueMany calls trace once, with its own context. The results become the headers
// traceparent and tracestate of W3C Trace Context. Call ContextWithTrace once, at the root: trace sees the span that is
// active at the enqueue. It runs in the caller's goroutine and must not block.
//
// Events that already have a traceparent header keep it. An invalid or empty traceparent is ignored, and so is an
// invalid tracestate: tracing never fails an enqueue. EnqueueInBatch has no context: use WithHeaders.
func ContextWithTrace(
	ctx context.Context, trace func(ctx context.Context) (traceparent, tracestate string),
) context.Context {
	return context.WithValue(ctx, traceKey{}, trace)
}

// traceHeaders returns the headers that the trace of ctx adds to events, nil without a trace.
func traceHeaders(ctx context.Context) map[string]string {
	trace, _ := ctx.Value(traceKey{}).(func(context.Context) (string, string))
	if trace == nil {
		return nil
	}
	parent, state := trace(ctx)
	if !isTraceparent(parent) {
		return nil
	}
	headers := map[string]string{traceparentHeader: parent}
	if isTracestate(state) {
		headers[tracestateHeader] = state
	}
	return headers
}

// follow adds the headers of a trace to m unless m already has a trace. It does not change the map of m, which belongs
// to the caller.
func (m *Message) follow(trace map[string]string) {
	if len(trace) == 0 {
		return
	}
	for name := range m.Headers {
		if strings.EqualFold(name, traceparentHeader) {
			return
		}
	}
	headers := make(map[string]string, len(m.Headers)+len(trace))
	for name, value := range m.Headers {
		if !strings.EqualFold(name, tracestateHeader) { // it belongs to another parent
			headers[name] = value
		}
	}
	maps.Copy(headers, trace)
	m.Headers = headers
}

// isTraceparent reports whether s is version-trace-parent-flags in lower-case hex, with both ids not zero. Versions
// after 00 may have more after another dash.
func isTraceparent(s string) bool {
	const length = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if len(s) < length || len(s) > maxTracestate || s[:2] == "ff" ||
		len(s) > length && (s[:2] == "00" || s[length] != '-') || !isTracestate(s) {
		return false
	}
	for i := range length {
		c := s[i]
		if dash := i == 2 || i == 35 || i == 52; dash != (c == '-') || !dash && (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return strings.Trim(s[3:35], "0") != "" && strings.Trim(s[36:52], "0") != ""
}

// isTracestate reports whether s is a list in printable ASCII that is not longer than what every system forwards.
func isTracestate(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return s != "" && len(s) <= maxTracestate
}
