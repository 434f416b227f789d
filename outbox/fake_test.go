package outbox_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxfake"
)

// TestFakeRefusesWhatIsRefusedBeforePostgreSQL: every message that an enqueue refuses is refused by a Fake too, with the
// same text.
func TestFakeRefusesWhatIsRefusedBeforePostgreSQL(t *testing.T) {
	t.Parallel()
	var fake outboxfake.DB
	faked, err := fake.Begin(t.Context())
	require.NoError(t, err)
	pgtest.InTx(t, pgtest.Database(t), func(tx pgx.Tx) {
		for name, bad := range badMessages() {
			m := runtimetest.Message(runtimetest.TenantA, 1)
			bad.change(&m)
			_, want := outbox.Enqueue(t.Context(), tx, "", m)
			_, have := outbox.Enqueue(t.Context(), faked, "", m)
			require.EqualError(t, have, want.Error(), name)
			if bad.want != nil {
				require.ErrorIs(t, have, bad.want, name)
			}
			ms := []outbox.Message{runtimetest.Message(runtimetest.TenantA, 2), m}
			_, want = outbox.EnqueueMany(t.Context(), tx, "", ms)
			_, have = outbox.EnqueueMany(t.Context(), faked, "", ms)
			require.EqualError(t, have, want.Error(), name)
		}
		for _, schema := range []string{"Outbox", "select"} {
			_, want := outbox.Enqueue(t.Context(), tx, schema, runtimetest.Message(runtimetest.TenantA, 1))
			_, have := outbox.Enqueue(t.Context(), faked, schema, runtimetest.Message(runtimetest.TenantA, 1))
			require.EqualError(t, have, want.Error())
		}
		//lint:ignore SA1012 it is what the test is about
		_, want := outbox.Enqueue(nil, tx, "", runtimetest.Message(runtimetest.TenantA, 1)) //nolint:staticcheck
		//lint:ignore SA1012 it is what the test is about
		_, have := outbox.Enqueue(nil, faked, "", runtimetest.Message(runtimetest.TenantA, 1)) //nolint:staticcheck
		require.EqualError(t, have, want.Error())
	})
	require.NoError(t, faked.Commit(t.Context()))
	require.Empty(t, fake.Events())
}
