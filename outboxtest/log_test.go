package outboxtest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
)

var loggedTopic = outbox.NewTopic[note](outbox.TopicSpec{Namespace: "notes", Name: "logged", Version: 1, Log: true, Keys: noteTopic.Untyped().Spec().Keys})

func TestLogTopicIsReadAndDrained(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		outboxtest.RequireNotEnqueued(t, tx, loggedTopic, nil)
		receipt, err := loggedTopic.Enqueue(t.Context(), tx, note{ID: "a"})
		require.NoError(t, err)
		require.Equal(t, "a", outboxtest.RequireEnqueued(t, tx, loggedTopic, is("a")).ID)
		require.Equal(t, "no event of notes/logged matches; there are 1:\n\t"+receipt.ID.String()+` in the log key "a"`,
			failure(t, func(t testing.TB) { outboxtest.RequireEnqueued(t, tx, loggedTopic, is("b")) }))
		outboxtest.RequireNotEnqueued(t, tx, noteTopic, nil)
		return nil
	}))

	var got []string
	h := noteFunc(func(_ context.Context, d outbox.Delivery[note]) error {
		got = append(got, d.Payload.ID)
		return nil
	})
	l, err := listener.New(pool, listener.Spec{Name: "reader"}, listener.Config{},
		listener.Handle(loggedTopic, noteHandlers(h), noteHandlers(h).HandleWritten))
	require.NoError(t, err)
	require.Equal(t, listener.Report{Delivered: 1}, outboxtest.Drain(t, l))
	require.Equal(t, []string{"a"}, got)
}

func TestDrainListenerLetsHandlersFailTheTest(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := loggedTopic.Enqueue(t.Context(), tx, note{ID: "a"})
		return err
	}))
	message := failure(t, func(t testing.TB) {
		h := noteFunc(func(context.Context, outbox.Delivery[note]) error {
			t.Fatal("not what the test wants")
			return nil
		})
		l, err := listener.New(pool, listener.Spec{Name: "reader"}, listener.Config{},
			listener.Handle(loggedTopic, noteHandlers(h), noteHandlers(h).HandleWritten))
		require.NoError(t, err)
		outboxtest.Drain(t, l)
	})
	require.Equal(t, "not what the test wants", message)
}
