package migrate_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// row is what a statement inserts: for each column an expression of SQL.
type row map[string]string

const anID, anotherID, noTenant = "'018f0000-0000-7000-8000-000000000001'", "'018f0000-0000-7000-8000-000000000002'", "'00000000-0000-0000-0000-000000000000'"

// required has for each table the columns without which no row can be inserted by hand.
var required = map[string]row{
	"events":    {"namespace": "'n'", "topic": "'t'", "payload": "'1'"},
	"queue":     {"id": anID, "namespace": "'n'", "topic": "'t'"},
	"delivered": {"id": anID, "attempts": "1", "namespace": "'n'", "topic": "'t'"},
	"dead_letters": {
		"id": anID, "namespace": "'n'", "topic": "'t'", "version": "1", "payload": "'1'", "created_at": "now()", "attempts": "1", "error": "'x'",
	},
	"limits":      {"namespace": "'n'", "topic": "'t'", "per": "''", "counted_as": "'t'", "nth": "1", "tag": "'a'", "part": "0"},
	"limit_usage": {"namespace": "'n'", "topic": "'t'", "per": "''", "key": "''"},
	"log":         {"namespace": "'n'", "topic": "'t'", "payload": "'1'"},
	"listeners": {
		"listener": "'l'", "shard": "0", "shards": "2", "lo": "pg_current_snapshot()", "lo_bound": "pg_current_xact_id()", "high_seq": "0", "system_id": "1",
	},
	"parked": {
		"listener": "'l'", "key": "'k'", "seq": "1", "id": anID, "namespace": "'n'", "topic": "'t'", "version": "1", "payload": "'1'", "bucket": "0",
		"created_at": "now()",
	},
	"listener_rates":    {"listener": "'l'"},
	"listener_failures": {"id": anID, "listener": "'l'", "attempt": "1", "at": "now()", "error": "'x'"},
	"processed_events":  {"consumer_group": "'g'", "event_id": anID},
	"entity_versions": {
		"consumer_group": "'g'", "source": "''", "tenant_id": noTenant, "entity_type": "'e'", "entity_id": "'1'", "version": "1", "event_id": anID,
	},
	"inbox_quarantined": {
		"consumer_group": "'g'", "event_id": anID, "source": "''", "tenant_id": noTenant, "entity_type": "'e'", "entity_id": "'1'", "version": "1",
		"last_version": "2", "last_event_id": anotherID,
	},
	"inbox_messages": {
		"consumer_group": "'g'", "message_id": "'m'", "place": "'p'", "type": "'t'", "namespace": "'n'", "topic": "'t'", "version": "1", "envelope": "'{}'",
		"body": "''", "status": "'parked'", "attempts": "1", "next_attempt_at": "now()", "error": "'x'",
	},
	"processes": {"worker_id": anID, "kind": "'listener'", "name": "'l'", "host": "'h'", "pid": "1", "topics": "'{}'"},
	"pauses":    {"namespace": "'n'", "who": "'w'"},
	"audit":     {"who": "'w'", "act": "'a'", "scope": "'{}'"},
}

// insert returns a statement that inserts the required columns of table and those of others, and returns an expression.
func insert(table string, others row, returning string) string {
	all := maps.Clone(required[table])
	maps.Copy(all, others)
	columns := slices.Sorted(maps.Keys(all))
	var values []string
	for _, c := range columns {
		values = append(values, all[c])
	}
	return "INSERT INTO outbox." + table + " (" + strings.Join(columns, ", ") + ") OVERRIDING SYSTEM VALUE VALUES (" + strings.Join(values, ", ") +
		") RETURNING (" + returning + ")::text"
}

// TestDefaultsOfTheTables: a row that is written by hand gets these values in the columns that it does not name.
func TestDefaultsOfTheTables(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	now := func(columns ...string) string {
		return strings.Join(columns, " = statement_timestamp() AND ") + " = statement_timestamp()"
	}
	for table, want := range map[string][2]string{
		"events":            {"concat_ws(' ', version, " + now("created_at") + ", id IS NOT NULL)", "1 t t"},
		"queue":             {"concat_ws(' ', claim_no, attempts, max_attempts, version, lane, " + now("next_attempt_at", "updated_at") + ")", "0 0 25 1 0 t"},
		"delivered":         {"concat_ws(' ', claim_no, " + now("finalized_at") + ")", "0 t"},
		"dead_letters":      {now("died_at"), "true"},
		"limits":            {now("declared_at"), "true"},
		"limit_usage":       {"concat_ws(' ', running, starts_at, starts, " + now("updated_at") + ")", "{} {} {} t"},
		"log":               {"concat_ws(' ', version, bucket, seq, xid = pg_current_xact_id(), " + now("created_at") + ", id IS NOT NULL)", "1 0 1 t t t"},
		"listener_rates":    {"concat_ws(' ', untils, counts)", "{} {}"},
		"parked":            {"concat_ws(' ', attempts, taken)", "0 0"},
		"processed_events":  {now("processed_at"), "true"},
		"entity_versions":   {now("updated_at"), "true"},
		"inbox_quarantined": {now("quarantined_at"), "true"},
		"inbox_messages":    {"concat_ws(' ', max_attempts, " + now("received_at", "failed_at") + ", no IS NOT NULL)", "0 t t"},
		"processes":         {"concat_ws(' ', resting, " + now("started_at", "seen_at") + ")", "{} t"},
		"pauses":            {"concat_ws('/', topic, tenant_id, listener, why, " + now("paused_at") + ")", "/00000000-0000-0000-0000-000000000000///t"},
		"audit":             {"concat_ws('/', why, events, " + now("at") + ")", "/0/t"},
		"listeners": {
			`concat_ws(' ', last_seq, in_batch, ahead_seqs, ahead_attempts, lease_no, running, one_by_one, trying, retry_count, past_shards, ` +
				now("created_at") + ")", "0 f {} {} 0 f 0 0 0 {} t",
		},
	} {
		require.Equal(t, want[1], pgtest.Value[string](t, pool, insert(table, nil, want[0])), table)
	}
	require.Equal(t, "true", pgtest.Value[string](t, pool, insert("pauses", row{"namespace": "DEFAULT", "listener": "'l'"}, "namespace = ''")))
}

// TestConstraintsOfTheTables: rows that nothing of ours could work with are refused, by the constraint of this name, and the rows
// next to them are not.
func TestConstraintsOfTheTables(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	long := func(n string) string { return "repeat('é', " + n + ") || 'xx'" } // two bytes each
	window := row{"in_batch": "true", "hi": "pg_current_snapshot()", "hi_bound": "pg_current_xact_id()", "hi_seq": "1"}
	barrier := row{"barrier": "pg_current_snapshot()", "barrier_bound": "pg_current_xact_id()", "barrier_seq": "1"}
	without := func(r row, column, value string) row {
		r = maps.Clone(r)
		r[column] = value
		return r
	}
	for _, c := range []struct {
		table, constraint string
		refused, accepted []row
	}{
		{"events", "events_version_check", []row{{"version": "0"}}, []row{{"version": "1"}}},
		{"events", "events_dedupe_tenant_check", []row{{"tenant_id": anID, "dedupe_key": "'k'"}, {"tenant_id": anID, "dedupe_key": anID}},
			[]row{{"tenant_id": anID, "dedupe_key": anID + " || '/k'"}, {"tenant_id": anID}, {"dedupe_key": "'k'"}}},
		{"events", "events_dedupe_length_check", []row{{"dedupe_key": long("256")}}, []row{{"dedupe_key": long("255")}}},
		{"log", "log_version_check", []row{{"version": "0"}}, []row{{"version": "1"}}},
		{"log", "log_bucket_check", []row{{"bucket": "-1"}}, []row{{"bucket": "0"}}},
		{"log", "log_dedupe_tenant_check", []row{{"tenant_id": anID, "dedupe_key": "'k'"}, {"tenant_id": anID, "dedupe_key": anID}},
			[]row{{"tenant_id": anID, "dedupe_key": anID + " || '/k'"}, {"tenant_id": anID}, {"dedupe_key": "'k'"}}},
		{"log", "log_dedupe_length_check", []row{{"dedupe_key": long("256")}}, []row{{"dedupe_key": long("255")}}},
		{"queue", "queue_attempts_check", []row{{"attempts": "-1"}, {"max_attempts": "0"}}, []row{{"attempts": "0", "max_attempts": "1"}}},
		{"queue", "queue_lane_check", []row{{"lane": "-1"}}, []row{{"lane": "0"}}},
		{"queue", "queue_failures_check", []row{{"failures": "'{}'"}}, []row{{"failures": "'[]'"}, {"failures": "NULL"}}},
		{"dead_letters", "dead_letters_listener_check", []row{{"listener": "'l'", "seq": "1"}, {"listener": "'l'", "bucket": "1"}, {"seq": "1"}, {"bucket": "1"}},
			[]row{{"listener": "'l'", "seq": "1", "bucket": "1"}}},
		{"limits", "limits_values_check",
			[]row{{"concurrency": "0"}, {"rate": "0", "period": "'1 s'"}, {"set_concurrency": "0"}, {"set_rate": "0", "set_period": "'1 s'"}},
			[]row{{"concurrency": "1", "rate": "1", "period": "'1 s'", "set_concurrency": "1", "set_rate": "1", "set_period": "'1 s'"}}},
		{"limits", "limits_rate_check", []row{{"rate": "1"}, {"period": "'1 s'"}, {"set_rate": "1"}, {"set_period": "'1 s'"}}, nil},
		{"listeners", "listeners_shard_check", []row{{"shard": "-1"}, {"shard": "2"}}, []row{{"shard": "0"}, {"shard": "1"}}},
		{"listeners", "listeners_window_check", []row{
			{"in_batch": "true"}, without(window, "in_batch", "false"), without(window, "hi", "NULL"), without(window, "hi_bound", "NULL"),
			without(window, "hi_seq", "NULL"),
		}, []row{window}},
		{"listeners", "listeners_lease_check", []row{{"lease_by": anID}, {"lease_until": "now()"}}, []row{{"lease_by": anID, "lease_until": "now()"}}},
		{"listeners", "listeners_ahead_check", []row{{"ahead_seqs": "'{1}'"}, {"ahead_attempts": "'{1}'"}}, []row{{"ahead_seqs": "'{1}'", "ahead_attempts": "'{1}'"}}},
		{"listeners", "listeners_barrier_check", []row{
			without(barrier, "barrier", "NULL"), without(barrier, "barrier_bound", "NULL"), without(barrier, "barrier_seq", "NULL"),
		}, []row{barrier}},
		{"listener_rates", "listener_rates_check", []row{{"untils": "ARRAY[now()]"}, {"counts": "'{1}'"}}, []row{{"untils": "ARRAY[now()]", "counts": "'{1}'"}}},
		{"entity_versions", "entity_versions_version_check", []row{{"version": "0"}}, []row{{"version": "1"}}},
		{"inbox_messages", "inbox_messages_status_check", []row{{"status": "'done'"}}, []row{{"status": "'parked'"}, {"status": "'dead'"}}},
		{"processes", "processes_kind_check", []row{{"kind": "'queue'"}}, []row{{"kind": "'dispatcher'"}, {"kind": "'listener'"}}},
		{"pauses", "pauses_scope_check", []row{
			{"listener": "'l'"}, {"namespace": "''", "listener": "'l'", "topic": "'t'"}, {"namespace": "''", "listener": "'l'", "tenant_id": anID},
			{"namespace": "''", "topic": "'t'"}, {"namespace": "''", "topic": "'t'", "tenant_id": anID}, {"namespace": "''"},
		}, []row{
			{"namespace": "''", "listener": "'l'"}, {"topic": "'t'"}, {"topic": "'t'", "tenant_id": anID}, {"tenant_id": anID}, {"namespace": "''", "tenant_id": anID},
		}},
	} {
		for _, r := range c.refused {
			require.Equal(t, c.constraint, violated(t, pool, insert(c.table, r, "true")), "%s %v", c.table, r)
		}
		for _, r := range c.accepted {
			require.Empty(t, violated(t, pool, insert(c.table, r, "true")), "%s %v", c.table, r)
		}
	}
}

// TestKeysOfTheTables: a second row with the same key is refused.
func TestKeysOfTheTables(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	for _, c := range []struct {
		table, constraint string
		both              row
	}{
		{"events", "events_pkey", row{"id": anID}},
		{"events", "events_dedupe_key", row{"dedupe_key": "'k'"}},
		{"queue", "queue_pkey", nil},
		{"delivered", "delivered_pkey", nil},
		{"dead_letters", "dead_letters_pkey", row{"no": "1", "id": "gen_random_uuid()"}},
		{"dead_letters", "dead_letters_event", nil},
		{"limits", "limits_pkey", nil},
		{"limit_usage", "limit_usage_pkey", nil},
		{"log", "log_pkey", row{"seq": "1"}},
		{"log", "log_dedupe_key", row{"dedupe_key": "'k'"}},
		{"listeners", "listeners_pkey", nil},
		{"parked", "parked_event_key", nil},
		{"parked", "parked_pkey", row{"no": "1", "seq": "nextval('outbox.log_seq')"}},
		{"listener_rates", "listener_rates_pkey", nil},
		{"listener_failures", "listener_failures_pkey", nil},
		{"processed_events", "processed_events_pkey", nil},
		{"entity_versions", "entity_versions_pkey", nil},
		{"inbox_quarantined", "inbox_quarantined_pkey", nil},
		{"inbox_messages", "inbox_messages_message_key", nil},
		{"inbox_messages", "inbox_messages_pkey", row{"no": "1", "message_id": "gen_random_uuid()"}},
		{"processes", "processes_pkey", nil},
		{"pauses", "pauses_pkey", nil},
		{"audit", "audit_pkey", row{"no": "1"}},
	} {
		one := insert(c.table, c.both, "true")
		require.Equal(t, c.constraint, violated(t, pool, one, one), c.table)
	}
}

// violated runs statements in a transaction that is rolled back, and returns the constraint that the last of them violates, if it does.
func violated(t *testing.T, db *pgxpool.Pool, statements ...string) string {
	t.Helper()
	tx, err := db.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	for i, sql := range statements {
		_, err := tx.Exec(t.Context(), sql, pgx.QueryExecModeExec)
		var refused *pgconn.PgError
		if i == len(statements)-1 && errors.As(err, &refused) {
			require.NotEmpty(t, refused.ConstraintName, sql)
			return refused.ConstraintName
		}
		require.NoError(t, err, sql)
	}
	return ""
}
