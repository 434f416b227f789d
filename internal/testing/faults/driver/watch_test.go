package driver

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/faults/check"
)

// TestDatabaseNotes: the database notes a cursor that goes back without an operator, and an event with two ends.
func TestDatabaseNotes(t *testing.T) {
	t.Parallel()
	require.NoError(t, Config{Seed: 1, Events: 40, Rate: 100, Progress: t.Output()}.run(t.Context(), true, func(d *driver) error {
		ctx := t.Context()
		if err := d.write(ctx); err != nil {
			return err
		}
		if _, err := d.judge(ctx, check.Rules{Calm: true}); err != nil {
			return err
		}
		none, err := d.notes(ctx)
		require.NoError(t, err)
		require.Empty(t, none, "what is usual is not noted")
		const back = "UPDATE outbox.listeners SET high_seq = high_seq - 1 WHERE listener = 'ledger'"
		for _, c := range []struct{ by, sql, want string }{
			{operatorName, back, ""},
			{"worker", back, check.Back + ": the cursor of listener ledger, shard 0, went from "},
			{"worker", "UPDATE outbox.listeners SET lo = '1:1:' WHERE listener = 'to_nats'", check.Back + ": the cursor of listener to_nats, shard 0, went from "},
			{"worker", `INSERT INTO outbox.queue (id, namespace, topic, version, max_attempts) SELECT id, namespace, topic, 1, 5 FROM outbox.delivered LIMIT 1;
				DELETE FROM outbox.delivered USING outbox.queue WHERE delivered.id = queue.id;
				INSERT INTO outbox.delivered (id, namespace, topic, attempts) SELECT id, namespace, topic, 1 FROM outbox.queue`, check.Again + ": event "},
		} {
			require.NoError(t, d.exec(ctx, "BEGIN; SET LOCAL application_name = "+c.by+"; "+c.sql+"; COMMIT"))
			notes, err := d.notes(ctx)
			require.NoError(t, err)
			if c.want == "" {
				require.Empty(t, notes, c.sql)
				continue
			}
			require.Len(t, notes, 1, c.sql)
			require.Contains(t, notes[0].String(), c.want)
			require.NoError(t, d.exec(ctx, "DELETE FROM notes"))
		}
		return nil
	}))
}
