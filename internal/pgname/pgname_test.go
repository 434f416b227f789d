package pgname_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgname"
	"github.com/outboxgen/outboxgen/internal/pgtest"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"outbox", "a", "my_app2", "between", "events", "public", strings.Repeat("a", 41)} {
		require.NoError(t, pgname.Check(good), good)
	}
	for name, want := range map[string]string{
		"":                      `schema name "": must match ^[a-z][a-z0-9_]{0,40}$`,
		"Outbox":                `schema name "Outbox": must match ^[a-z][a-z0-9_]{0,40}$`,
		"2fa":                   `schema name "2fa": must match ^[a-z][a-z0-9_]{0,40}$`,
		"a\n":                   `schema name "a\n": must match ^[a-z][a-z0-9_]{0,40}$`,
		`x"; DROP TABLE y`:      `schema name "x\"; DROP TABLE y": must match ^[a-z][a-z0-9_]{0,40}$`,
		strings.Repeat("a", 42): `schema name "` + strings.Repeat("a", 42) + `": must match ^[a-z][a-z0-9_]{0,40}$`,
		strings.Repeat("é", 99): `schema name "` + strings.Repeat("é", 32) + `...": must match ^[a-z][a-z0-9_]{0,40}$`,
		"user":                  `schema name "user": is a reserved word of SQL`,
		"pg_catalog":            `schema name "pg_catalog": belongs to PostgreSQL`,
		"information_schema":    `schema name "information_schema": belongs to PostgreSQL`,
	} {
		require.EqualError(t, pgname.Check(name), want)
	}
}

// The list has every word that the server reserves, and a name that passes Check needs no quotes.
func TestReservedAgreesWithPostgreSQL(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), pgtest.Empty(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	rows, err := conn.Query(t.Context(), "SELECT word, catcode::text FROM pg_get_keywords()")
	require.NoError(t, err)
	var word, category string
	count := 0
	_, err = pgx.ForEachRow(rows, []any{&word, &category}, func() error {
		count++
		want := category == "R" || category == "T"
		require.Equal(t, want, pgname.Reserved(word), "%s is of category %s", word, category)
		require.Equal(t, want, pgname.Reserved(strings.ToUpper(word)))
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, count, 400)
}
