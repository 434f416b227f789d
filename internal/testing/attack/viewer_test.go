package attack_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
)

// TestViewerSeesTwoHeaders: who reads no payloads sees what has caused an event, and nothing else of its headers, however it
// asks: with a function of its own that is given all that the view has, or with an index.
func TestViewerSeesTwoHeaders(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	cause := uuid.NewString()
	headers := fmt.Sprintf(`{"causation_id": %q, "correlation_id": "request 7", "authorization": "%s"}`, cause, marker)
	pgtest.Execute(t, pool, `INSERT INTO outbox.events (namespace, topic, payload, headers) VALUES ('shop', 'paid', $1, $2)`, `"`+marker+`"`, headers)
	pgtest.Execute(t, pool, `INSERT INTO outbox.log (namespace, topic, payload, headers) VALUES ('shop', 'heard', $1, $2)`, `"`+marker+`"`, headers)
	pgtest.Execute(t, pool, `INSERT INTO outbox.dead_letters (listener, seq, bucket, id, namespace, topic, version, payload, headers, created_at, attempts, error)
		SELECT 'ears', seq, bucket, id, namespace, topic, version, payload, headers, created_at, 1, 'no' FROM outbox.log`)
	pgtest.Execute(t, pool, `INSERT INTO outbox.parked (listener, key, seq, bucket, id, namespace, topic, version, payload, headers, created_at)
		SELECT 'eyes', '', seq, bucket, id, namespace, topic, version, payload, headers, created_at FROM outbox.log`)
	pgtest.Execute(t, pool, "ANALYZE outbox.events, outbox.log")
	for _, who := range logins(t, pool) {
		if who.name != string(migrate.Viewer) {
			continue
		}
		read := func(sql string) (text string) {
			require.NoError(t, who.session.QueryRow(t.Context(), sql).Scan(&text), sql)
			return text
		}
		_, err := who.session.Exec(t.Context(), `CREATE FUNCTION pg_temp.tell(x text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS
			$$ BEGIN PERFORM set_config('evil.told', current_setting('evil.told', true) || x, false); RETURN true; END $$`)
		require.NoError(t, err)
		_ = read("SELECT set_config('evil.told', ' ', false)")
		require.Equal(t, "4", read("SELECT count(*)::text FROM outbox.event_links AS e WHERE pg_temp.tell(e::text)"))
		all := read("SELECT current_setting('evil.told')") + read("SELECT string_agg(e::text, ' ') FROM outbox.event_links AS e") +
			read("SELECT coalesce(string_agg(s::text, ' '), '') FROM pg_catalog.pg_stats AS s WHERE s.schemaname = 'outbox'")
		require.Contains(t, all, cause)
		require.Contains(t, all, "request 7")
		require.NotContains(t, all, marker)
		for _, table := range []string{"events", "log", "dead_letters", "parked"} {
			for _, column := range []string{"headers", "payload", "headers ->> 'causation_id'"} {
				require.False(t, allowed(t, who.session, fmt.Sprintf("SELECT %s FROM outbox.%s", column, table)), "%s of %s", column, table)
			}
		}
		for _, write := range []string{"INSERT INTO outbox.event_links (id) VALUES (gen_random_uuid())", "UPDATE outbox.event_links SET place = ''", "DELETE FROM outbox.event_links"} {
			require.False(t, allowed(t, who.session, write), write)
		}
	}
}
