package outbox_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
)

// What poolers need: statements that are not prepared, with arguments whose types pgx goes by alone.
func TestEveryExecMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			t.Parallel()
			cfg, err := pgxpool.ParseConfig(pgtest.URL(t, pgtest.Database(t)))
			require.NoError(t, err)
			cfg.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			for _, log := range []bool{false, true} {
				keys := func(v any) outbox.Keys {
					p := v.(*runtimetest.Job)
					return outbox.Keys{
						TenantID: outbox.Tenant(p.TenantID), Partition: eventkey.NewKey(eventkey.IntPart("n", p.N)),
						Dedupe: eventkey.NewKey(eventkey.UUIDPart("tenant_id", p.TenantID), eventkey.IntPart("n", p.N)),
					}
				}
				topic := runtimetest.Altered(runtimetest.JobTopic("any"), func(s *outbox.TopicSpec) { s.Log, s.Keys = log, keys })
				jobs := runtimetest.NumberedJobs(4)
				headers := outbox.WithHeaders(map[string]string{"a": "b"})
				pgtest.InTx(t, pool, func(tx pgx.Tx) {
					_, err := topic.Enqueue(t.Context(), tx, jobs[0], headers)
					require.NoError(t, err)
					again, err := topic.Enqueue(t.Context(), tx, jobs[0])
					require.NoError(t, err)
					require.True(t, again.Duplicate)
					_, err = topic.EnqueueMany(t.Context(), tx, jobs[:3], headers)
					require.NoError(t, err)
					b := &pgx.Batch{}
					queued, err := topic.EnqueueInBatch(b, jobs[3], headers)
					require.NoError(t, err)
					require.NoError(t, tx.SendBatch(t.Context(), b).Close())
					receipt, err := queued.Receipt()
					require.NoError(t, err)
					require.False(t, receipt.Duplicate)
				})
			}
			require.Equal(t, 8, pgtest.Count(t, pool, `SELECT (SELECT count(*) FROM testing.events WHERE headers->>'a' = 'b') + (SELECT count(*) FROM outbox.log WHERE headers->>'a' = 'b')`))
			stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(runtimetest.JobTopic("any"), func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
				if d.Attempt == 1 && d.Payload.N == 2 {
					return fmt.Errorf("again")
				}
				return nil
			})))
			pgtest.Settles(t, pool, 4, runtimetest.DeliveredSQL)
			require.NoError(t, stop())
		})
	}
}
