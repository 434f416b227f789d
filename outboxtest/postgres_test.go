package outboxtest_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/queue"
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

// A test may need the outbox in another schema, or in several.
func TestPostgresSchemas(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t, outboxtest.Schema("billing"), outboxtest.Schema("shop"))
	for _, schema := range []string{"billing", "shop"} {
		require.NoError(t, migrate.Validate(t.Context(), pool, schema))
	}
	require.ErrorIs(t, migrate.Validate(t.Context(), pool, "outbox"), migrate.ErrPending, "only the named schemas have an outbox")
	in := func(schema string) outbox.Topic[note] {
		spec := noteTopic.Untyped().Spec()
		spec.Schema = schema
		return outbox.NewTopic[note](spec)
	}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := in("shop").Untyped().Enqueue(t.Context(), tx, note{ID: "a"})
		return err
	}))
	require.Equal(t, "a", outboxtest.RequireEnqueued(t, pool, in("shop"), nil).ID)
	outboxtest.RequireNotEnqueued(t, pool, in("billing"), nil)
}

func TestNilArgumentsFailTheTest(t *testing.T) {
	t.Parallel()
	for want, check := range map[string]func(testing.TB){
		"outboxtest.Postgres: option 2 of 2 is nil":                                    func(t testing.TB) { outboxtest.Postgres(t, outboxtest.Schema("a"), nil) },
		`outboxtest.Postgres: schema name "Not a name" is not valid: `:                 func(t testing.TB) { outboxtest.Postgres(t, outboxtest.Schema("Not a name")) },
		"read events of notes/written: no transaction, connection or pool given (nil)": func(t testing.TB) { outboxtest.RequireEnqueued(t, nil, noteTopic, nil) },
		"drain: no dispatcher or listener given (nil)":                                 func(t testing.TB) { outboxtest.Drain(t, (*queue.Dispatcher)(nil)) },
	} {
		require.Contains(t, failure(t, check), want)
	}
}
