package outbox_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestClaimReadsWhatWasWrittenByHand: a claim is committed when its rows are read, so nothing that a row can hold costs the
// others of the claim an attempt. The checks that refuse most of it are dropped here.
func TestClaimReadsWhatWasWrittenByHand(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			cfg := pgtest.Database(t).Config()
			cfg.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			enqueueN(t, pool, 3)
			execute(t, pool, `ALTER TABLE outbox.events DROP CONSTRAINT events_time_check, DROP CONSTRAINT events_attempts_check`)
			rows := []string{
				`next_attempt_at) VALUES ('test', 'hand', '1', '-infinity'`,
				`next_attempt_at) VALUES ('test', 'hand', 'null', '4713-01-01 00:00:00+00 BC'`,
				`created_at) VALUES ('test', 'hand', '"text"', 'infinity'`,
				`created_at) VALUES ('test', 'hand', '[]', '-infinity'`,
				`created_at) VALUES ('test', 'hand', '{}', '294276-12-31 00:00:00+00'`,
				`headers) VALUES ('test', 'hand', '1', '{"a": 1, "traceparent": "00-1", "b": null, "c": {"d": "e"}}'`,
				`headers) VALUES ('test', 'hand', '1', '[1, 2]'`,
				`headers) VALUES ('test', 'hand', '1', '"text"'`,
				`headers) VALUES ('test', 'hand', '1', 'null'`,
				`attempts, claim_no, entity_version) VALUES ('test', 'hand', '1', -2147483648, -9223372036854775808, -1`,
				`entity_type, partition_key, dedupe_key) VALUES ('test', 'hand', '1', '', '', ''`,
			}
			for _, row := range rows {
				execute(t, pool, "INSERT INTO outbox.events (namespace, topic, payload, "+row+")")
			}
			s := newStore(t, pool)
			claimed, err := s.Claim(t.Context(), outbox.ClaimConfig{})
			require.NoError(t, err)
			require.Len(t, claimed, 3+len(rows), "in %s", mode)
			var headers []map[string]string
			for _, c := range claimed {
				if len(c.Headers) > 0 {
					headers = append(headers, c.Headers)
				}
			}
			require.Equal(t, []map[string]string{{"traceparent": "00-1"}}, headers)
			outcomes, err := s.Ack(t.Context(), claimed...)
			require.NoError(t, err)
			require.Equal(t, all(len(claimed), outbox.Acked), outcomes)
		})
	}
}

// TestReleaseNeverRefuses: an event whose attempts somebody has reset while it was held is handed back with the others.
func TestReleaseNeverRefuses(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	s := newStore(t, pool)
	enqueueN(t, pool, 2)
	claimed := claimN(t, s, 2)
	execute(t, pool, "UPDATE outbox.events SET attempts = 0 WHERE id = $1", claimed[0].ID)
	_, err := s.Release(t.Context(), claimed...)
	require.NoError(t, err)
	require.Equal(t, 2, countWhere(t, pool, "status = 'pending' AND attempts = 0"))
}

// TestLogTablesRefuseTimesThatNobodyCanRead: infinities, and years that RFC 3339 does not have.
func TestLogTablesRefuseTimesThatNobodyCanRead(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	execute(t, pool, "INSERT INTO outbox.log (namespace, topic, payload) VALUES ('test', 'said', '1')")
	execute(t, pool, `INSERT INTO outbox.parked (listener, key, seq, id, namespace, topic, version, payload, bucket, created_at)
		VALUES ('ears', 'a', 1, gen_random_uuid(), 'test', 'said', 1, '1', 0, now())`)
	execute(t, pool, `INSERT INTO outbox.dead_letters (listener, seq, id, namespace, topic, version, payload, bucket, created_at, attempts, error)
		VALUES ('ears', 1, gen_random_uuid(), 'test', 'said', 1, '1', 0, now(), 1, 'x')`)
	for table, columns := range map[string][]string{
		"log": {"created_at"}, "parked": {"created_at", "retry_after", "parked_at"}, "dead_letters": {"created_at", "died_at"},
	} {
		for _, column := range columns {
			for _, at := range []string{"infinity", "-infinity", "10000-01-01 00:00:00+00", "0001-12-31 23:59:59+00 BC"} {
				_, err := pool.Exec(t.Context(), "UPDATE outbox."+table+" SET "+column+" = '"+at+"'")
				require.ErrorContains(t, err, table+"_time_check", "%s %s", column, at)
			}
			for _, at := range []string{"9999-12-31 23:59:59+00", "0001-01-01 00:00:00+00"} {
				execute(t, pool, "UPDATE outbox."+table+" SET "+column+" = '"+at+"'")
			}
		}
	}
	for _, table := range []string{"parked", "dead_letters"} {
		_, err := pool.Exec(t.Context(), "UPDATE outbox."+table+" SET attempts = -1")
		require.ErrorContains(t, err, table+"_attempts_check")
	}
}

// TestListenerReadsWhatWasWrittenByHand: nothing that a row of the log can hold holds up what is behind it.
func TestListenerReadsWhatWasWrittenByHand(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	execute(t, pool, "ALTER TABLE outbox.log DROP CONSTRAINT log_time_check")
	for i, column := range []string{
		"created_at 'infinity'", "created_at '-infinity'", "created_at '294276-12-31 00:00:00+00'", `headers '{"a": 1, "b": "kept"}'`,
		"headers '[]'", "headers 'null'",
	} {
		name, value, _ := strings.Cut(column, " ")
		execute(t, pool, fmt.Sprintf(`INSERT INTO outbox.log (namespace, topic, partition_key, payload, %s)
			VALUES ('test', 'said', 'a', '{"key": "a", "n": %d}', %s)`, name, i+1, value))
	}
	h := newNotes()
	stop := startListener(t, listenTo(t, pool, outbox.ListenerSpec{}, outbox.ListenerConfig{PollInterval: 20 * time.Millisecond}, h))
	h.await(t, 6)
	stop()
	require.Equal(t, 6, h.inOrder(t))
	require.Equal(t, map[string]string{"b": "kept"}, h.got[3].Headers)
}
