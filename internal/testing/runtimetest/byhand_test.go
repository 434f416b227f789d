package runtimetest_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/queue"
)

// TestClaimReadsRowsWrittenByHand: a claim is already committed when its rows are read, so no content of a row may cost
// the other events of the claim an attempt.
func TestClaimReadsRowsWrittenByHand(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			cfg := pgtest.Database(t).Config()
			cfg.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			runtimetest.EnqueueN(t, pool, 3)
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
				`attempts, max_attempts, claim_no, entity_version) VALUES ('test', 'hand', '1', 2147483646, 2147483647, -9223372036854775808, -1`,
				`entity_type, partition_key, dedupe_key) VALUES ('test', 'hand', '1', '', '', ''`,
			}
			for _, row := range rows {
				pgtest.Execute(t, pool, "INSERT INTO testing.events (namespace, topic, payload, "+row+")")
			}
			s := runtimetest.NewStore(t, pool)
			claimed, err := s.Claim(t.Context(), queue.ClaimConfig{})
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
			require.Equal(t, runtimetest.Repeat(len(claimed), queue.Applied), outcomes)
		})
	}
}

// TestReleaseNeverRefuses: an event whose attempts were reset while it was in flight is released with the others.
func TestReleaseNeverRefuses(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	s := runtimetest.NewStore(t, pool)
	runtimetest.EnqueueN(t, pool, 2)
	claimed := runtimetest.ClaimN(t, s, 2)
	pgtest.Execute(t, pool, "UPDATE testing.events SET attempts = 0 WHERE id = $1", claimed[0].ID)
	_, err := s.Release(t.Context(), claimed...)
	require.NoError(t, err)
	require.Equal(t, 2, runtimetest.CountWhere(t, pool, "status = 'pending' AND attempts = 0"))
}

// TestListenerReadsRowsWrittenByHand: no content of a row of the log blocks the events after it.
func TestListenerReadsRowsWrittenByHand(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	for i, column := range []string{
		"created_at 'infinity'", "created_at '-infinity'", "created_at '294276-12-31 00:00:00+00'", `headers '{"a": 1, "b": "kept"}'`,
		"headers '[]'", "headers 'null'",
	} {
		name, value, _ := strings.Cut(column, " ")
		pgtest.Execute(t, pool, fmt.Sprintf(`INSERT INTO outbox.log (namespace, topic, partition_key, payload, %s)
			VALUES ('test', 'said', 'a', '{"key": "a", "n": %d}', %s)`, name, i+1, value))
	}
	h := runtimetest.NewNotes()
	stop := runtimetest.StartListener(t, runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{PollInterval: 20 * time.Millisecond}, h))
	h.Await(t, 6)
	stop()
	require.Equal(t, 6, h.InOrder(t))
	require.Equal(t, map[string]string{"b": "kept"}, h.Got[3].Headers)
}
