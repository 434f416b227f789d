package outboxtest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outboxtest"
)

func TestPostgres(t *testing.T) {
	t.Parallel()
	for range 2 {
		pool := outboxtest.Postgres(t)
		require.NoError(t, migrate.Validate(t.Context(), pool, "outbox"))
		tag, err := pool.Exec(t.Context(), "INSERT INTO outbox.events (namespace, topic, dedupe_key, payload) VALUES ('a', 'b', 'c', '{}')")
		require.NoError(t, err)
		require.EqualValues(t, 1, tag.RowsAffected())
	}
}
