package queue_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// writeMisfits writes events of a namespace by hand, in each state and in each pair of states. Three are queued although they
// are final, and two have no state. A dead letter of a listener is no state of an event of a queue topic.
func writeMisfits(t *testing.T, pool *pgxpool.Pool, namespace string) {
	t.Helper()
	put := func(states ...string) {
		id := uuid.New()
		pgtest.Execute(t, pool, "INSERT INTO outbox.events (id, namespace, topic, payload) VALUES ($1, $2, 'one', '1')", id, namespace)
		for _, state := range states {
			pgtest.Execute(t, pool, map[string]string{
				"queued":    "INSERT INTO outbox.queue (id, namespace, topic) SELECT id, namespace, topic FROM outbox.events WHERE id = $1",
				"delivered": "INSERT INTO outbox.delivered (id, attempts, namespace, topic) SELECT id, 1, namespace, topic FROM outbox.events WHERE id = $1",
				"dead": `INSERT INTO outbox.dead_letters (id, namespace, topic, version, payload, created_at, attempts, error)
					SELECT id, namespace, topic, 1, payload, created_at, 1, 'x' FROM outbox.events WHERE id = $1`,
				"unheard": `INSERT INTO outbox.dead_letters (listener, seq, bucket, id, namespace, topic, version, payload, created_at, attempts, error)
					SELECT 'mail', 1, 1, id, namespace, topic, 1, payload, created_at, 1, 'x' FROM outbox.events WHERE id = $1`,
			}[state], id)
		}
	}
	put("queued")
	put("delivered")
	put("dead")
	put("queued", "unheard")
	put("delivered", "unheard")
	put("queued", "delivered")
	put("queued", "dead")
	put("queued", "dead", "unheard")
	put()
	put("unheard")
}

// TestMisfitsAreCountedOnce: pieces of any size find each misfit of the namespace once, in the order of ids, and a piece behind the last row
// is empty. Only a dead letter of the queue topic itself makes an event final.
func TestMisfitsAreCountedOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	db, err := schemadb.Open("")
	require.NoError(t, err)
	writeMisfits(t, pool, "jobs")
	writeMisfits(t, pool, "other")
	all := map[string][]uuid.UUID{}
	for _, table := range []string{"queue", "events"} {
		all[table] = pgtest.Value[[]uuid.UUID](t, pool, "SELECT array_agg(id ORDER BY id) FROM outbox."+table)
	}
	for _, size := range []int32{1, 3, 100} {
		first := pgtype.UUID{Valid: true}
		arg := queries.EventMisfitsParams{AfterQueued: first, AfterEnqueued: first, BatchSize: size, Namespace: "jobs"}
		var final, stateless int64
		for piece := 1; arg.AfterQueued.Valid || arg.AfterEnqueued.Valid; piece++ {
			row, err := db.Each(pool).EventMisfits(t.Context(), arg)
			require.NoError(t, err)
			final, stateless = final+row.Final, stateless+row.Stateless
			for table, checked := range map[string]pgtype.UUID{"queue": row.CheckedQueued, "events": row.CheckedEnqueued} {
				ids := all[table]
				if want := min(piece*int(size), len(ids)); want > (piece-1)*int(size) {
					require.Equal(t, ids[want-1], uuid.UUID(checked.Bytes), "the last of piece %d of %s", piece, table)
				} else {
					require.False(t, checked.Valid, "piece %d of %s", piece, table)
				}
			}
			arg.AfterQueued, arg.AfterEnqueued = row.CheckedQueued, row.CheckedEnqueued
		}
		require.Equal(t, []int64{3, 2}, []int64{final, stateless}, "pieces of %d", size)
	}
}
