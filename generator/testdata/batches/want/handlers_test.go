package events

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// digests handles batches of two topics, with and without a transaction, and the events of another one by one.
type digests struct{ UnimplementedMailHandlers }

func (digests) HandleDigestDueBatch(_ context.Context, ds []outbox.Delivery[DigestDue]) error {
	var failed outbox.BatchError
	for _, d := range ds {
		if d.Attempt > 3 {
			failed.Fail(d.Event, outbox.Permanent(context.DeadlineExceeded))
		}
	}
	return failed.Err()
}

type notes struct{ UnimplementedKeeperHandlers }

func (notes) HandleNoteAddedBatch(_ context.Context, tx pgx.Tx, ds []outbox.Delivery[NoteAdded]) error {
	return nil
}

// TestNobodyHandlesBatchesYet: stubs and opted-out methods return an error, so that no event is lost.
func TestNobodyHandlesBatchesYet(t *testing.T) {
	t.Parallel()
	for _, h := range []MailHandlers{&MailHandler{}, UnimplementedMailHandlers{}} {
		require.ErrorIs(t, h.HandleDigestDueBatch(t.Context(), nil), outbox.ErrUnimplemented)
		require.ErrorIs(t, h.HandleMailReceivedBatch(t.Context(), nil), outbox.ErrUnimplemented)
		require.ErrorIs(t, h.HandleMailSent(t.Context(), outbox.Delivery[MailSent]{}), outbox.ErrUnimplemented)
	}
	for _, h := range []KeeperHandlers{&KeeperHandler{}, UnimplementedKeeperHandlers{}} {
		require.ErrorIs(t, h.HandleNoteAddedBatch(t.Context(), nil, nil), outbox.ErrUnimplemented)
	}
	for _, h := range []IndexerHandlers{&IndexerHandler{}, UnimplementedIndexerHandlers{}} {
		require.ErrorIs(t, h.HandleNoteAddedBatch(t.Context(), nil), outbox.ErrUnimplemented)
		require.ErrorIs(t, h.HandleNoteRemovedBatch(t.Context(), nil), outbox.ErrUnimplemented)
	}
}

// TestConstructorsTakeHandlersOfBatches: those of batches too, and refuse a nil one.
func TestConstructorsTakeHandlersOfBatches(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none") // does not connect
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = NewMailDispatcher(pool, digests{}, queue.Config{})
	require.NoError(t, err)
	_, err = NewMailDispatcher(pool, nil, queue.Config{})
	require.ErrorContains(t, err, "nil")
	_, err = NewKeeperListener(pool, notes{}, listener.Config{})
	require.NoError(t, err)
	_, err = NewKeeperListener(pool, nil, listener.Config{})
	require.ErrorContains(t, err, "nil")
	_, err = NewIndexerListener(pool, &IndexerHandler{}, listener.Config{})
	require.NoError(t, err)
	_, err = NewIndexerListener(pool, nil, listener.Config{})
	require.ErrorContains(t, err, "nil")
}
