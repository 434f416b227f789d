package outbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
)

// Columns that only some messages of a call fill must not slip to others, and without dedupe keys the events are in
// the order of the call: a queue claims them by id, a log is read by seq.
func TestEnqueueManyWithSparseColumns(t *testing.T) {
	t.Parallel()
	const n = 1200 // more than one statement
	for _, table := range []string{"events", "log"} {
		for _, keyed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s keyed %t", table, keyed), func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Database(t)
				ms := make([]outbox.Message, n)
				for i := range ms {
					m := outbox.Message{Namespace: runtimetest.Namespace, Topic: "ping", Log: table == "log", Payload: fmt.Appendf(nil, "%d", i)}
					if keyed && i%2 == 1 { // descending, so that they go in in another order
						m.DedupeKey = fmt.Sprintf("%05d", n-i)
					}
					switch i % 7 {
					case 2:
						m.PartitionKey = fmt.Sprint("p", i)
					case 3:
						m.Entity = outbox.Entity{Type: "n", ID: fmt.Sprint("e", i), Version: int64(i)}
					case 4:
						m.Headers = map[string]string{"n": fmt.Sprint(i)}
					case 5:
						m.NotBefore = time.Now().Add(runtimetest.LongLease)
					}
					if m.Log {
						m.NotBefore = time.Time{}
					}
					ms[i] = m
				}
				receipts := runtimetest.EnqueueAll(t, pool, ms...)
				type stored struct {
					ID              uuid.UUID
					N               int
					Key, Part, Type string
					Entity          string
					Version         int64
					Header          string
				}
				rows, err := pool.Query(t.Context(), `SELECT id, payload::int, coalesce(dedupe_key, ''), coalesce(partition_key, ''), coalesce(entity_type, ''),
					coalesce(entity_id, ''), coalesce(entity_version, 0), coalesce(headers->>'n', '') FROM outbox.`+table+" ORDER BY "+
					map[string]string{"events": "id", "log": "seq"}[table])
				require.NoError(t, err)
				all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[stored])
				require.NoError(t, err)
				require.Len(t, all, n)
				for i, got := range all {
					if table == "log" && keyed {
						i = got.N // statements of a thousand are cut by key
					}
					m := ms[i]
					require.Equal(t, stored{receipts[i].ID, i, m.DedupeKey, m.PartitionKey, m.Entity.Type, m.Entity.ID, m.Entity.Version, m.Headers["n"]}, got)
					require.False(t, receipts[i].Duplicate)
				}
				if table == "events" {
					require.Equal(t, n/7, runtimetest.CountWhere(t, pool, "next_attempt_at > now() AND payload::int % 7 = 5"))
					require.Equal(t, n/7, runtimetest.CountWhere(t, pool, "next_attempt_at > now()"))
				}
			})
		}
	}
}

// TestBellIsRungOnlyForWhatIsWritten: with a sleeper, each way to enqueue rings once for an event and not for a
// duplicate, which changes nothing for anybody.
func TestBellIsRungOnlyForWhatIsWritten(t *testing.T) {
	t.Parallel()
	ways := map[string]func(t *testing.T, tx pgx.Tx, m outbox.Message) outbox.Receipt{
		"Enqueue": func(t *testing.T, tx pgx.Tx, m outbox.Message) outbox.Receipt {
			r, err := outbox.Enqueue(t.Context(), tx, "", m)
			require.NoError(t, err)
			return r
		},
		"EnqueueMany": func(t *testing.T, tx pgx.Tx, m outbox.Message) outbox.Receipt {
			r, err := outbox.EnqueueMany(t.Context(), tx, "", []outbox.Message{m, m})
			require.NoError(t, err)
			return r[0]
		},
		"Queue": func(t *testing.T, tx pgx.Tx, m outbox.Message) outbox.Receipt {
			var b pgx.Batch
			q, err := outbox.EnqueueInBatch(&b, "", m)
			require.NoError(t, err)
			require.NoError(t, tx.SendBatch(t.Context(), &b).Close())
			r, err := q.Receipt()
			require.NoError(t, err)
			return r
		},
	}
	for name, enqueue := range ways {
		for _, log := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s log %t", name, log), func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Database(t)
				bell, channel := runtimetest.BellOf(map[bool]string{false: "jobs", true: "log topics"}[log])
				asleep, err := pgx.Connect(t.Context(), pgtest.URL(t, pool))
				require.NoError(t, err)
				defer func() { _ = asleep.Close(context.Background()) }()
				_, err = asleep.Exec(t.Context(), "LISTEN "+channel)
				require.NoError(t, err)
				_, err = asleep.Exec(t.Context(), "SELECT pg_advisory_lock($1)", bell)
				require.NoError(t, err)
				for _, written := range []bool{true, false} {
					for _, key := range []string{"a", "b"} {
						pgtest.InTx(t, pool, func(tx pgx.Tx) {
							r := enqueue(t, tx, outbox.Message{Namespace: "jobs", Topic: "ping", Log: log, DedupeKey: key, Payload: []byte("1")})
							require.Equal(t, !written, r.Duplicate)
						})
					}
				}
				rung := 0
				_, err = asleep.Exec(t.Context(), "SELECT pg_notify($1, 'end')", channel)
				require.NoError(t, err)
				for {
					n, err := asleep.WaitForNotification(t.Context())
					require.NoError(t, err)
					if n.Payload == "end" {
						break
					}
					rung++
				}
				require.Equal(t, 2, rung)
			})
		}
	}
}
