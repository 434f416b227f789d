package outbox_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestLogDrawsItsNumbersAfterTheXID: a transaction has its xid before it draws a number of the log, in each way to enqueue. The
// cursors of listeners rely on that. Here the sequence is locked, so each way waits before its first number.
func TestLogDrawsItsNumbersAfterTheXID(t *testing.T) {
	t.Parallel()
	keyless := outbox.Message{Namespace: "jobs", Topic: "ping", Log: true, Payload: []byte("1")}
	keyed := func(key string) outbox.Message {
		m := keyless
		m.DedupeKey = key
		return m
	}
	for name, enqueue := range map[string]func(tx pgx.Tx) error{
		"Enqueue": func(tx pgx.Tx) error {
			_, err := outbox.Enqueue(t.Context(), tx, "", keyless)
			return err
		},
		"EnqueueMany": func(tx pgx.Tx) error {
			_, err := outbox.EnqueueMany(t.Context(), tx, "", []outbox.Message{keyed("a"), keyed("b")})
			return err
		},
		"EnqueueMany without keys": func(tx pgx.Tx) error {
			_, err := outbox.EnqueueMany(t.Context(), tx, "", []outbox.Message{keyless, keyless})
			return err
		},
		"EnqueueInBatch": func(tx pgx.Tx) error {
			var b pgx.Batch
			if _, err := outbox.EnqueueInBatch(&b, "", keyless); err != nil {
				return err
			}
			return tx.SendBatch(t.Context(), &b).Close()
		},
		"SQL": func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `SELECT outbox.enqueue_log('jobs', 'ping', '1')`)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			lock := pgtest.Begin(t, pool, pgx.TxOptions{})
			_, err := lock.Exec(t.Context(), "ALTER SEQUENCE outbox.log_seq CACHE 1")
			require.NoError(t, err)
			tx := pgtest.Begin(t, pool, pgx.TxOptions{})
			written := make(chan error, 1)
			go func() { written <- enqueue(tx) }()
			pgtest.AwaitBlocked(t, pool, 1)
			require.True(t, pgtest.Value[bool](t, pool, `SELECT backend_xid IS NOT NULL FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event_type = 'Lock'`))
			require.NoError(t, lock.Commit(t.Context()))
			require.NoError(t, pgtest.Receive(t, written, "the enqueue"))
		})
	}
}
