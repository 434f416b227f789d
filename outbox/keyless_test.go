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

// heardTx is a transaction that keeps the text of its latest statement.
type heardTx struct {
	pgx.Tx
	sql string
}

func (tx *heardTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	tx.sql = sql
	return tx.Tx.QueryRow(ctx, sql, args...)
}

// TestEventWithoutKeyPaysForNone: the insert of an event without a dedupe key looks for no conflict, alone and in a batch,
// and its receipt is that of an event that was written.
func TestEventWithoutKeyPaysForNone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	for _, log := range []bool{false, true} {
		for _, key := range []string{"", runtimetest.TenantA.String() + "/k"} {
			m := runtimetest.Message(runtimetest.TenantA, 1)
			m.Log, m.DedupeKey = log, key
			pgtest.InTx(t, pool, func(tx pgx.Tx) {
				heard := &heardTx{Tx: tx}
				one, err := outbox.Enqueue(t.Context(), heard, "", m)
				require.NoError(t, err)
				require.Equal(t, key != "", strings.Contains(heard.sql, "ON CONFLICT"), heard.sql)

				b := &pgx.Batch{}
				pending, err := outbox.EnqueueInBatch(b, "", m)
				require.NoError(t, err)
				require.Equal(t, key != "", strings.Contains(b.QueuedQueries[0].SQL, "ON CONFLICT"))
				require.NoError(t, tx.SendBatch(t.Context(), b).Close())
				receipt, err := pending.Receipt()
				require.NoError(t, err)
				require.Equal(t, key != "", receipt.Duplicate)
				resolved, err := pending.Resolve(t.Context(), tx)
				require.NoError(t, err)
				require.Equal(t, receipt, resolved)
				require.Equal(t, key != "", receipt.ID == one.ID, "only with a key it is the same event")
			})
		}
	}
}
