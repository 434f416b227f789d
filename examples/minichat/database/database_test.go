package database_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/minichat/database"
	"github.com/outboxgen/outboxgen/outboxtest"
)

func TestMigrateByManyAtOnce(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	errs := make([]error, 4)
	var busy sync.WaitGroup
	for i := range errs {
		busy.Go(func() { errs[i] = database.Migrate(t.Context(), pool) })
	}
	busy.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	var tables int
	require.NoError(t, pool.QueryRow(t.Context(), `
		SELECT count(*)
		FROM pg_tables
		WHERE schemaname = 'public' AND tablename IN ('quotas', 'turns', 'usage_ledger')`).Scan(&tables))
	require.Equal(t, 3, tables)
}
