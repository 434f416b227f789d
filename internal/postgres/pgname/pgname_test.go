package pgname_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/pgname"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"outbox", "a", "my_app2", "between", "events", "public", strings.Repeat("a", 41)} {
		require.NoError(t, pgname.Check(good), good)
	}
	for name, want := range map[string]string{
		"":                      `schema name "" is not valid: use a lower-case letter, then up to 40 of a-z, 0-9 or _`,
		"Outbox":                `schema name "Outbox" is not valid: use a lower-case letter, then up to 40 of a-z, 0-9 or _`,
		"2fa":                   `schema name "2fa" is not valid: use a lower-case letter, then up to 40 of a-z, 0-9 or _`,
		"a\n":                   `schema name "a\n" is not valid: use a lower-case letter, then up to 40 of a-z, 0-9 or _`,
		`x"; DROP TABLE y`:      `schema name "x\"; DROP TABLE y" is not valid: use a lower-case letter, then up to 40 of a-z, 0-9 or _`,
		strings.Repeat("a", 42): `schema name "` + strings.Repeat("a", 42) + `" is not valid: use a lower-case letter, then up to 40 of a-z, 0-9 or _`,
		strings.Repeat("é", 99): `schema name "` + strings.Repeat("é", 32) + `..." is not valid: use a lower-case letter, then up to 40 of a-z, 0-9 or _`,
		"user":                  `schema name "user" is a reserved word of SQL: choose another`,
		"pg_catalog":            `schema name "pg_catalog" belongs to PostgreSQL: choose another`,
		"information_schema":    `schema name "information_schema" belongs to PostgreSQL: choose another`,
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
