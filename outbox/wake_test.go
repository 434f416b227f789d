package outbox_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
)

// topicEnqueues are the ways in which a topic writes events.
var topicEnqueues = map[string]func(ctx context.Context, topic outbox.Topic[runtimetest.Job], tx pgx.Tx, jobs []runtimetest.Job) error{
	"Enqueue": func(ctx context.Context, topic outbox.Topic[runtimetest.Job], tx pgx.Tx, jobs []runtimetest.Job) error {
		for _, job := range jobs {
			if _, err := topic.Enqueue(ctx, tx, job); err != nil {
				return err
			}
		}
		return nil
	},
	"EnqueueMany": func(ctx context.Context, topic outbox.Topic[runtimetest.Job], tx pgx.Tx, jobs []runtimetest.Job) error {
		_, err := topic.EnqueueMany(ctx, tx, jobs)
		return err
	},
	"EnqueueInBatch": func(ctx context.Context, topic outbox.Topic[runtimetest.Job], tx pgx.Tx, jobs []runtimetest.Job) error {
		var b pgx.Batch
		for _, job := range jobs {
			if _, err := topic.EnqueueInBatch(&b, job); err != nil {
				return err
			}
		}
		return tx.SendBatch(ctx, &b).Close()
	},
}

// rings returns how often the doorbell has rung that conn listens to.
func rings(t *testing.T, conn *pgx.Conn, channel string) int {
	t.Helper()
	_, err := conn.Exec(t.Context(), "SELECT pg_notify($1, 'end')", channel)
	require.NoError(t, err)
	for n := 0; ; n++ {
		heard, err := conn.WaitForNotification(t.Context())
		require.NoError(t, err)
		if heard.Payload == "end" {
			return n
		}
	}
}

// TestBellIsLeftAlone: an enqueue notifies nobody if nobody sleeps, although another transaction that has enqueued is open,
// nor if its topic is silent. Otherwise it wakes who sleeps.
func TestBellIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, enqueue := range topicEnqueues {
		for _, log := range []bool{false, true} {
			for _, keys := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s log %t keys %t", name, log, keys), func(t *testing.T) {
					t.Parallel()
					pool := pgtest.Database(t)
					topic := func(silent bool) outbox.Topic[runtimetest.Job] {
						return runtimetest.Altered(runtimetest.JobTopic(fmt.Sprintf("silent_%t", silent)), func(s *outbox.TopicSpec) {
							s.Log, s.Silent = log, silent
							s.Keys = func(v any) outbox.Keys {
								if !keys {
									return outbox.Keys{}
								}
								return outbox.Keys{Dedupe: eventkey.NewKey(eventkey.IntPart("n", v.(*runtimetest.Job).N))}
							}
						})
					}
					ring, channel := runtimetest.BellOf(map[bool]string{false: "jobs", true: "log topics"}[log])
					ears := connection(t, pool)
					_, err := ears.Exec(t.Context(), "LISTEN "+channel)
					require.NoError(t, err)
					for _, sleeps := range []bool{false, true} {
						if sleeps {
							_, err := ears.Exec(t.Context(), "SELECT pg_advisory_lock($1)", ring)
							require.NoError(t, err)
						}
						for _, silent := range []bool{true, false} {
							jobs := runtimetest.NumberedJobs(4)
							first, second := pgtest.Begin(t, pool, pgx.TxOptions{}), pgtest.Begin(t, pool, pgx.TxOptions{})
							require.NoError(t, enqueue(t.Context(), topic(silent), first, jobs[:2]))
							require.NoError(t, enqueue(t.Context(), topic(silent), second, jobs[2:]))
							require.NoError(t, second.Commit(t.Context()))
							require.NoError(t, first.Rollback(t.Context()))
							want := 0
							if sleeps && !silent {
								want = 1
							}
							require.Equal(t, want, rings(t, ears, channel), "sleeps %t, silent %t", sleeps, silent)
							pgtest.Execute(t, pool, "TRUNCATE outbox.events, outbox.queue, outbox.log")
						}
					}
				})
			}
		}
	}
}
