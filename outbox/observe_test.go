package outbox_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
)

type observedKey struct{}

// TestEnqueueIsObserved: each way to enqueue with a context tells the observer of that context, before and after.
func TestEnqueueIsObserved(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	var begun []int
	var told []outbox.Enqueued
	traced := 0
	ctx := outbox.ContextWithObserver(t.Context(), &outbox.Observer{
		Enqueuing: func(ctx context.Context, namespace, topic string, events int) context.Context {
			begun = append(begun, events)
			return context.WithValue(ctx, observedKey{}, "span")
		},
		Enqueued: func(ctx context.Context, e outbox.Enqueued) {
			require.Equal(t, "span", ctx.Value(observedKey{}))
			require.Positive(t, e.Took)
			e.Took = 0
			told = append(told, e)
		},
	})
	ctx = outbox.ContextWithTrace(ctx, func(ctx context.Context) (string, string) {
		require.Equal(t, "span", ctx.Value(observedKey{}), "the span that Enqueuing has begun")
		traced++
		return "", ""
	})
	m := outbox.Message{Namespace: "test", Topic: "keyed", DedupeKey: "a", Payload: []byte("{}")}
	topic := runtimetest.JobTopic("one").Untyped()
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := outbox.Enqueue(ctx, tx, "", m)
		require.NoError(t, err)
		_, err = outbox.Enqueue(ctx, tx, "", m)
		require.NoError(t, err)
		other := m
		other.DedupeKey = "b"
		_, err = outbox.EnqueueMany(ctx, tx, "", []outbox.Message{m, other})
		require.NoError(t, err)
		_, err = topic.Enqueue(ctx, tx, runtimetest.NumberedJobs(1)[0])
		require.NoError(t, err)
		_, err = topic.EnqueueMany(ctx, tx, runtimetest.NumberedJobs(3))
		require.NoError(t, err)
		_, err = topic.EnqueueMany(ctx, tx, runtimetest.NumberedJobs(0))
		require.NoError(t, err)
		_, err = topic.Enqueue(ctx, tx, "not a job")
		require.Error(t, err)
	})
	require.Equal(t, []int{1, 1, 2, 1, 3, 1}, begun)
	require.Equal(t, 5, traced)
	require.Len(t, told, 6)
	require.ErrorContains(t, told[5].Err, "the payload is of type string")
	told[5].Err = nil
	require.Equal(t, []outbox.Enqueued{
		{Namespace: "test", Topic: "keyed", Events: 1},
		{Namespace: "test", Topic: "keyed", Duplicates: 1},
		{Namespace: "test", Topic: "keyed", Events: 1, Duplicates: 1},
		{Namespace: "jobs", Topic: "one", Events: 1},
		{Namespace: "jobs", Topic: "one", Events: 3},
		{Namespace: "jobs", Topic: "one"},
	}, told)
}

// TestEnqueueSurvivesItsObserver: a panic in the observer does not fail the enqueue.
func TestEnqueueSurvivesItsObserver(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	ctx := outbox.ContextWithObserver(t.Context(), &outbox.Observer{
		Enqueuing: func(context.Context, string, string, int) context.Context { panic("boom") },
		Enqueued:  func(context.Context, outbox.Enqueued) { panic("boom") },
	})
	for _, ctx := range []context.Context{ctx, outbox.ContextWithObserver(t.Context(), nil)} {
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			_, err := runtimetest.JobTopic("one").Untyped().Enqueue(ctx, tx, runtimetest.NumberedJobs(1)[0])
			require.NoError(t, err)
		})
	}
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.events"))
}
