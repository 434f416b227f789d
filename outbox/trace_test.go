package outbox_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
)

const (
	rootSpan  = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	laterSpan = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
)

// spanKey is where these tests keep the active span, as a tracer does.
type spanKey struct{}

// tracing returns a context whose events have the active span for their trace.
func tracing(ctx context.Context) context.Context {
	return outbox.ContextWithTrace(ctx, func(ctx context.Context) (string, string) {
		span, _ := ctx.Value(spanKey{}).(string)
		return span, "a=b,c=d"
	})
}

func withSpan(ctx context.Context, span string) context.Context {
	return context.WithValue(ctx, spanKey{}, span)
}

// TestEventsTakeTheTraceOfTheirContext: that of the span which is active at the enqueue, unless they have their own.
func TestEventsTakeTheTraceOfTheirContext(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	own := map[string]string{"x-own": "yes", "TraceState": "x=y"}
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		root := tracing(t.Context())
		enqueue := func(ctx context.Context, n int, headers map[string]string) {
			m := runtimetest.Message(runtimetest.TenantA, n)
			m.Headers = headers
			_, err := outbox.Enqueue(ctx, tx, "", m)
			require.NoError(t, err)
		}
		enqueue(t.Context(), 0, nil)
		enqueue(root, 1, nil) // no span is active
		enqueue(withSpan(root, rootSpan), 2, nil)
		enqueue(withSpan(withSpan(root, rootSpan), laterSpan), 3, own)
		enqueue(withSpan(root, rootSpan), 4, map[string]string{"Traceparent": "mine"})
		_, err := outbox.EnqueueMany(withSpan(root, rootSpan), tx, "", []outbox.Message{runtimetest.Message(runtimetest.TenantA, 5), runtimetest.Message(runtimetest.TenantA, 6)})
		require.NoError(t, err)
		_, err = noteTopic.Enqueue(withSpan(root, rootSpan), tx, note{Tenant: runtimetest.TenantA, Text: "typed"}, outbox.WithHeaders(own))
		require.NoError(t, err)
	})
	require.Equal(t, map[string]string{"x-own": "yes", "TraceState": "x=y"}, own, "the caller's map stays as it is")

	got := make(map[string]map[string]string)
	for _, c := range runtimetest.ClaimN(t, runtimetest.NewStore(t, pool), 8) {
		got[strings.TrimPrefix(c.DedupeKey, runtimetest.TenantA.String()+"/")] = c.Headers
	}
	traced := map[string]string{"traceparent": rootSpan, "tracestate": "a=b,c=d"}
	require.Equal(t, map[string]map[string]string{
		"0": nil, "1": nil, "2": traced,
		"3":     {"traceparent": laterSpan, "tracestate": "a=b,c=d", "x-own": "yes"},
		"4":     {"Traceparent": "mine"},
		"5":     traced,
		"6":     traced,
		"typed": {"traceparent": rootSpan, "tracestate": "a=b,c=d", "x-own": "yes"},
	}, got)
}

// TestLogEventsTakeTheTraceOfTheirContext, as those of the queue do.
func TestLogEventsTakeTheTraceOfTheirContext(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	m := runtimetest.Message(runtimetest.TenantA, 1)
	m.Log = true
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := outbox.Enqueue(withSpan(tracing(t.Context()), rootSpan), tx, "", m)
		require.NoError(t, err)
	})
	var parent string
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT headers->>'traceparent' FROM outbox.log").Scan(&parent))
	require.Equal(t, rootSpan, parent)
}

// TestInvalidTracesAreIgnored: tracing never fails an enqueue.
func TestInvalidTracesAreIgnored(t *testing.T) {
	t.Parallel()
	const zeroTrace, zeroSpan = "00-00000000000000000000000000000000-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"
	later := "01" + rootSpan[2:] + "-more"
	for parent, kept := range map[string]bool{
		rootSpan: true, later: true, later + "\x00": false, "": false, "x": false, zeroTrace: false, zeroSpan: false,
		strings.ToUpper(rootSpan): false, rootSpan + "-more": false, "ff" + rootSpan[2:]: false, rootSpan[:54]: false,
		"01" + rootSpan[2:] + "more": false, strings.Replace(rootSpan, "-", "0", 1): false, strings.Replace(rootSpan, "0a", "0-", 1): false,
		rootSpan[:54] + "\xff": false, later + strings.Repeat("x", 512): false,
	} {
		for state, stateKept := range map[string]bool{"a=b": true, "": false, "a=\x00": false, "a=ü": false, strings.Repeat("x", 513): false} {
			headers := outbox.TraceHeaders(outbox.ContextWithTrace(t.Context(), func(context.Context) (string, string) { return parent, state }))
			want := map[string]string{"traceparent": parent, "tracestate": state}
			if !stateKept {
				delete(want, "tracestate")
			}
			if !kept {
				want = nil
			}
			require.Equal(t, want, headers, "%q, %q", parent, state)
		}
	}
	require.Nil(t, outbox.TraceHeaders(t.Context()))
	require.Nil(t, outbox.TraceHeaders(outbox.ContextWithTrace(t.Context(), nil)))
}
