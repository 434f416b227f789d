package schemadb_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
)

// heard records the statements that it gets.
type heard struct {
	pgx.Tx
	queries []string
}

func (h *heard) Exec(_ context.Context, query string, _ ...any) (pgconn.CommandTag, error) {
	h.queries = append(h.queries, query)
	return pgconn.CommandTag{}, nil
}

func (h *heard) Query(_ context.Context, query string, _ ...any) (pgx.Rows, error) {
	h.queries = append(h.queries, query)
	return nil, context.Canceled
}

func (h *heard) QueryRow(_ context.Context, query string, _ ...any) pgx.Row {
	h.queries = append(h.queries, query)
	return noRow{}
}

type noRow struct{}

func (noRow) Scan(...any) error { return pgx.ErrNoRows }

func TestQueriesRunInTheSchema(t *testing.T) {
	t.Parallel()
	for name, quoted := range map[string]string{"": `"outbox"`, "outbox": `"outbox"`, "app": `"app"`} {
		s, err := schemadb.Open(name)
		require.NoError(t, err)
		again, err := schemadb.Open(name)
		require.NoError(t, err)
		require.Same(t, s, again)
		h := &heard{}
		q := s.On(h)
		_, err = q.ProcessedInsert(t.Context(), queries.ProcessedInsertParams{})
		require.NoError(t, err)
		_, err = q.ProcessedInsertMany(t.Context(), queries.ProcessedInsertManyParams{})
		require.ErrorIs(t, err, context.Canceled)
		_, err = q.VersionLast(t.Context(), queries.VersionLastParams{})
		require.ErrorIs(t, err, pgx.ErrNoRows)
		require.Len(t, h.queries, 3)
		for _, query := range h.queries {
			require.Contains(t, query, quoted+".")
			require.NotContains(t, query, "outbox_schema")
		}
	}
}

func TestOpenRejectsInvalidNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Outbox", "select", "pg_temp", `a"; DROP SCHEMA outbox; --`} {
		_, err := schemadb.Open(name)
		require.ErrorContains(t, err, "schema name ", name)
	}
}
