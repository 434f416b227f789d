package outbox_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxfake"
)

// headersOf returns the headers of all events of the queue, by what follows the tenant in their dedupe keys.
func headersOf(t *testing.T, tx pgx.Tx) map[string]map[string]string {
	t.Helper()
	rows, err := tx.Query(t.Context(), "SELECT split_part(dedupe_key, '/', 2), headers FROM outbox.events")
	require.NoError(t, err)
	all := make(map[string]map[string]string)
	var key string
	var headers map[string]string
	_, err = pgx.ForEachRow(rows, []any{&key, &headers}, func() error {
		all[key], headers = headers, nil
		return nil
	})
	require.NoError(t, err)
	return all
}

// TestEventsNameTheirCause: what is enqueued in the context of a handler has the id of its event, and that of the chain.
func TestEventsNameTheirCause(t *testing.T) {
	t.Parallel()
	root, next := outbox.Event{ID: uuid.New()}, outbox.Event{ID: uuid.New(), Headers: map[string]string{"correlation_id": "request-7", "causation_id": uuid.NewString()}}
	first := map[string]string{"causation_id": root.ID.String(), "correlation_id": root.ID.String()}
	second := map[string]string{"causation_id": next.ID.String(), "correlation_id": "request-7"}
	own := map[string]string{"x-own": "yes", "Correlation_ID": "mine"}
	merged := map[string]string{"x-own": "yes", "Correlation_ID": "mine", "causation_id": root.ID.String()}
	complete := map[string]string{"causation_id": "a", "correlation_id": "b"}

	pgtest.InTx(t, pgtest.Database(t), func(tx pgx.Tx) {
		caused := outbox.ContextWithCause(t.Context(), root)
		enqueue := func(ctx context.Context, n int, headers map[string]string) {
			m := runtimetest.Message(runtimetest.TenantA, n)
			m.Headers = headers
			_, err := outbox.Enqueue(ctx, tx, "", m)
			require.NoError(t, err)
		}
		enqueue(t.Context(), 0, nil)
		enqueue(caused, 1, nil)
		enqueue(outbox.ContextWithCause(caused, next), 2, nil)
		enqueue(caused, 3, own)
		enqueue(caused, 4, complete)
		enqueue(outbox.ContextWithCause(caused, outbox.Event{}), 5, nil)
		enqueue(withSpan(tracing(caused), rootSpan), 6, nil)
		_, err := outbox.EnqueueMany(caused, tx, "", []outbox.Message{runtimetest.Message(runtimetest.TenantA, 7), runtimetest.Message(runtimetest.TenantA, 8)})
		require.NoError(t, err)
		put := func(ctx context.Context, text string, opts ...outbox.EnqueueOption) {
			_, err := noteTopic.Enqueue(ctx, tx, note{Tenant: runtimetest.TenantA, Text: text}, opts...)
			require.NoError(t, err)
		}
		put(caused, "typed", outbox.WithHeaders(own))
		put(caused, "option", outbox.WithCause(next))
		put(t.Context(), "options", outbox.WithCause(root), outbox.WithHeaders(own))
		var b pgx.Batch
		_, err = noteTopic.EnqueueInBatch(&b, note{Tenant: runtimetest.TenantA, Text: "batch"}, outbox.WithCause(next))
		require.NoError(t, err)
		require.NoError(t, tx.SendBatch(t.Context(), &b).Close())

		traced := map[string]string{"traceparent": rootSpan, "tracestate": "a=b,c=d", "causation_id": root.ID.String(), "correlation_id": root.ID.String()}
		require.Equal(t, map[string]map[string]string{
			"0": nil, "1": first, "2": second, "3": merged, "4": complete, "5": nil, "6": traced, "7": first, "8": first,
			"typed": merged, "option": second, "options": merged, "batch": second,
		}, headersOf(t, tx))
	})
	require.Equal(t, map[string]string{"x-own": "yes", "Correlation_ID": "mine"}, own, "the caller's map stays as it is")
	e, ok := outbox.CauseFromContext(outbox.ContextWithCause(t.Context(), next))
	require.True(t, ok)
	require.Equal(t, next, e)
	_, ok = outbox.CauseFromContext(t.Context())
	require.False(t, ok)
}

// TestACorrelationThatNobodyCouldSendBeginsAgain: a handler does not fail for a header that somebody has written by hand.
func TestACorrelationThatNobodyCouldSendBeginsAgain(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	for correlation, want := range map[string]string{
		"x": "x", "": id.String(), "a\x00": id.String(), "a\xff": id.String(), "a\nb": id.String(),
		strings.Repeat("x", outbox.MaxKeyBytes): strings.Repeat("x", outbox.MaxKeyBytes), strings.Repeat("x", outbox.MaxKeyBytes+1): id.String(),
	} {
		var fake outboxfake.DB
		ctx := outbox.ContextWithCause(t.Context(), outbox.Event{ID: id, Headers: map[string]string{"correlation_id": correlation}})
		tx, err := fake.Begin(ctx)
		require.NoError(t, err)
		_, err = noteTopic.Enqueue(ctx, tx, note{Tenant: runtimetest.TenantA, Text: "x"})
		require.NoError(t, err, "%q", correlation)
		require.NoError(t, tx.Commit(ctx))
		require.Len(t, fake.Events(), 1)
		require.Equal(t, map[string]string{"causation_id": id.String(), "correlation_id": want}, fake.Events()[0].Headers)
	}
}

// TestWithoutACauseNothingIsAllocated: an enqueue outside of a handler does not pay for causes.
func TestWithoutACauseNothingIsAllocated(t *testing.T) {
	ctx, headers := t.Context(), map[string]string{"a": "b"}
	require.Zero(t, testing.AllocsPerRun(100, func() { headers = outbox.ChainHeaders(ctx, headers) }))
}

// BenchmarkCause is what an enqueue spends on causes.
func BenchmarkCause(b *testing.B) {
	headers := map[string]string{"a": "b"}
	deep := b.Context()
	for range 10 { // a request in a usual service
		deep = context.WithValue(deep, spanKey{}, "")
	}
	b.Run("outside of a handler", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			outbox.ChainHeaders(deep, headers)
		}
	})
	b.Run("in a handler", func(b *testing.B) {
		ctx := outbox.ContextWithCause(deep, outbox.Event{ID: uuid.New()})
		b.ReportAllocs()
		for b.Loop() {
			outbox.ChainHeaders(ctx, headers)
		}
	})
	b.Run("context of a handler", func(b *testing.B) {
		e := outbox.Event{ID: uuid.New()}
		b.ReportAllocs()
		for b.Loop() {
			outbox.ContextWithCause(deep, e)
		}
	})
}
