package runtimetest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// noContext is the nil context of a careless caller.
var noContext context.Context

// A nil argument is an error that says so, not a panic, and nothing is sent.
func TestNilArgumentsAreErrors(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := outbox.NewTopic[map[string]string](outbox.TopicSpec{Namespace: "notes", Name: "written", Version: 1})
	p := map[string]string{}
	m := outbox.Message{Namespace: "notes", Topic: "written", Payload: []byte("{}")}
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(t.Context())) }()
	batch := new(pgx.Batch)
	option := outbox.WithHeaders(map[string]string{"a": "b"})
	const noTx = "enqueue notes/written: no transaction given (nil)"
	typedNil := pgx.Tx((*pgxpool.Tx)(nil))
	for name, test := range map[string]struct {
		call func() error
		want string
	}{
		"tx":       {func() error { _, err := topic.Enqueue(t.Context(), nil, p); return err }, noTx},
		"typed tx": {func() error { _, err := topic.Enqueue(t.Context(), typedNil, p); return err }, noTx},
		"tx of many": {func() error {
			_, err := topic.EnqueueMany(t.Context(), typedNil, []map[string]string{p})
			return err
		}, noTx},
		"tx of a message":  {func() error { _, err := outbox.Enqueue(t.Context(), nil, "", m); return err }, noTx},
		"tx of messages":   {func() error { _, err := outbox.EnqueueMany(t.Context(), nil, "", []outbox.Message{m}); return err }, noTx},
		"batch":            {func() error { _, err := topic.EnqueueInBatch(nil, p); return err }, "queue notes/written: no batch given (nil)"},
		"batch of message": {func() error { _, err := outbox.EnqueueInBatch(nil, "", m); return err }, "queue notes/written: no batch given (nil)"},
		"option":           {func() error { _, err := topic.Enqueue(t.Context(), tx, p, option, nil); return err }, "enqueue notes/written: option 2 of 2 is nil"},
		"option of many": {func() error {
			_, err := topic.EnqueueMany(t.Context(), tx, []map[string]string{p}, nil)
			return err
		},
			"enqueue notes/written: event 1 of 1: option 1 of 1 is nil"},
		"option of a batch": {func() error { _, err := topic.EnqueueInBatch(batch, p, nil); return err }, "queue notes/written: option 1 of 1 is nil"},
		"context":           {func() error { _, err := topic.Enqueue(noContext, tx, p); return err }, "enqueue notes/written: no context given (nil)"},
		"pool of a dispatcher": {func() error {
			_, err := queue.NewDispatcher(nil, queue.Config{})
			return err
		},
			"no pool"},
		"pool of a listener": {func() error {
			_, err := listener.New(nil, listener.Spec{Name: "ears"}, listener.Config{})
			return err
		},
			"no pool"},
		"pool of an admin": {func() error { _, err := admin.New(nil, ""); return err }, "no pool"},
		"pool of a store":  {func() error { _, err := queue.NewStore(nil, queue.StoreConfig{Namespace: "notes"}); return err }, "no pool"},
	} {
		var err error
		require.NotPanics(t, func() { err = test.call() }, name)
		require.ErrorContains(t, err, test.want, name)
	}
	require.Zero(t, batch.Len())
	var events int
	require.NoError(t, tx.QueryRow(t.Context(), "SELECT count(*) FROM testing.events").Scan(&events))
	require.Zero(t, events, "and the transaction can be used")

	queued, err := topic.EnqueueInBatch(batch, p)
	require.NoError(t, err)
	_, err = queued.Resolve(t.Context(), nil)
	require.ErrorContains(t, err, "the results of the batch have not been read")
}
