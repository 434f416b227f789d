package outbox_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// enqueueWays write events in one transaction.
var enqueueWays = map[string]func(t *testing.T, tx pgx.Tx, ms []outbox.Message){
	"Enqueue": func(t *testing.T, tx pgx.Tx, ms []outbox.Message) {
		for _, m := range ms {
			_, err := outbox.Enqueue(t.Context(), tx, "", m)
			require.NoError(t, err)
		}
	},
	"EnqueueMany": func(t *testing.T, tx pgx.Tx, ms []outbox.Message) {
		_, err := outbox.EnqueueMany(t.Context(), tx, "", ms)
		require.NoError(t, err)
	},
	"EnqueueInBatch": func(t *testing.T, tx pgx.Tx, ms []outbox.Message) {
		var b pgx.Batch
		for _, m := range ms {
			_, err := outbox.EnqueueInBatch(&b, "", m)
			require.NoError(t, err)
		}
		require.NoError(t, tx.SendBatch(t.Context(), &b).Close())
	},
}

// TestUnfilledColumnsAreNull: what a message does not have is null in its row, also beside others that have it, in each way to
// enqueue. An entity has a version, if only 0.
func TestUnfilledColumnsAreNull(t *testing.T) {
	t.Parallel()
	for name, enqueue := range enqueueWays {
		for _, table := range []string{"events", "log"} {
			for _, keys := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s into %s keys %t", name, table, keys), func(t *testing.T) {
					t.Parallel()
					pool := pgtest.Database(t)
					ms := make([]outbox.Message, 3)
					for i := range ms {
						ms[i] = outbox.Message{Namespace: "test", Topic: "ping", Log: table == "log", Payload: fmt.Appendf(nil, "%d", i)}
						if keys && i < 2 {
							ms[i].DedupeKey = fmt.Sprint("k", i)
						}
					}
					ms[0].PartitionKey, ms[0].Entity = "p", outbox.Entity{Type: "order", ID: "1"}
					pgtest.InTx(t, pool, func(tx pgx.Tx) { enqueue(t, tx, ms) })
					filled := func(i int) string {
						return pgtest.Value[string](t, pool, `SELECT concat_ws(' ', partition_key, entity_type, entity_id, entity_version, dedupe_key)
							FROM outbox.`+table+` WHERE payload = to_jsonb($1::int)`, i)
					}
					key := func(i int) string {
						if keys {
							return fmt.Sprint("k", i)
						}
						return ""
					}
					require.Equal(t, map[bool]string{false: "p order 1 0", true: "p order 1 0 " + key(0)}[keys], filled(0))
					require.Equal(t, key(1), filled(1))
					require.Empty(t, filled(2))
					require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox."+table+
						" WHERE num_nulls(partition_key, entity_type, entity_id, entity_version) = 4"))
				})
			}
		}
	}
}

// TestLogHasTheOrderOfTheCall: the numbers of the log are drawn in the order of the call, with keys in any other order too.
func TestLogHasTheOrderOfTheCall(t *testing.T) {
	t.Parallel()
	for name, enqueue := range enqueueWays {
		for _, keys := range []string{"abc", "cba", "bca", ""} {
			t.Run(name+" "+keys, func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Database(t)
				ms := make([]outbox.Message, 3)
				for i := range ms {
					ms[i] = outbox.Message{Namespace: "test", Topic: "ping", Log: true, Payload: fmt.Appendf(nil, "%d", i)}
					if keys != "" {
						ms[i].DedupeKey = keys[i : i+1]
					}
				}
				pgtest.InTx(t, pool, func(tx pgx.Tx) { enqueue(t, tx, ms) })
				require.Equal(t, "0 1 2", pgtest.Value[string](t, pool, "SELECT string_agg(payload::text, ' ' ORDER BY seq) FROM outbox.log"))
			})
		}
	}
}
