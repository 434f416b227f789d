package queue_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// A dispatcher leaves events of a newer version as they are: a drain ends although they are due, a running one is idle, and a
// sweep does not make them dead. A process that knows the version gets them.
func TestNewerVersionsWaitInTheQueue(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	now := runtimetest.JobTopic("raised")
	ids := runtimetest.EnqueueJobs(t, pool, runtimetest.Newer(now), runtimetest.NumberedJobs(300)...)
	runtimetest.EnqueueJobs(t, pool, now, runtimetest.NumberedJobs(20)...)
	var misread atomic.Int64
	old := runtimetest.OnJob(now, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		if d.Version > 1 {
			misread.Add(1)
		}
		return nil
	})
	d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), old)
	report, err := d.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 20}, report)
	require.Equal(t, 300, pgtest.Count(t, pool, runtimetest.UntouchedSQL))

	watch := queue.Watch(d)
	stop := runtimetest.StartDispatcher(t, d)
	pgtest.Receive(t, watch.Idle, "idleness although events are due")
	runtimetest.EnqueueJobs(t, pool, runtimetest.Newer(now), runtimetest.NumberedJobs(1)...)
	runtimetest.EnqueueJobs(t, pool, now, runtimetest.NumberedJobs(5)...)
	pgtest.Settles(t, pool, 25, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
	require.Equal(t, 301, pgtest.Count(t, pool, runtimetest.UntouchedSQL))

	// The process that had claimed one of them for the last time has died.
	pgtest.Execute(t, pool, `UPDATE outbox.queue SET attempts = max_attempts, claim_no = 1, locked_by = gen_random_uuid(),
		locked_until = now() - interval '1 day', updated_at = now() - interval '1 day' WHERE id = $1`, ids[0])
	report, err = d.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{}, report)
	died, noted, err := queue.Sweep(t.Context(), d, nil)
	require.NoError(t, err)
	require.Zero(t, died+noted)
	require.Equal(t, 301, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue"))

	report, err = runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(runtimetest.Newer(now), runtimetest.Succeed)).Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 300, Dead: 1}, report)
	require.Zero(t, misread.Load())
}

// A Store claims the versions that it is told to.
func TestStoreClaimsVersions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	one, two := runtimetest.JobTopic("one"), runtimetest.JobTopic("two")
	for _, topic := range []outbox.Topic[runtimetest.Job]{one, runtimetest.Newer(one), two, runtimetest.Newer(two)} {
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(3)...)
	}
	for _, test := range []struct {
		versions map[string]int
		topics   []string
		want     map[string]int
	}{
		{map[string]int{"one": 1, "two": 1}, nil, map[string]int{"one 1": 3, "two 1": 3}},
		{map[string]int{"one": 1}, nil, map[string]int{"one 1": 3, "two 1": 3, "two 2": 3}},
		{map[string]int{"one": 1, "two": 2}, []string{"one"}, map[string]int{"one 1": 3}},
		{map[string]int{"one": 0}, []string{"one"}, map[string]int{}},
		{nil, nil, map[string]int{"one 1": 3, "one 2": 3, "two 1": 3, "two 2": 3}},
	} {
		for _, cursor := range []*queue.Cursor{nil, {}} {
			s, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "jobs"})
			require.NoError(t, err)
			got := make(map[string]int)
			claimed, err := s.Claim(t.Context(), queue.ClaimConfig{Versions: test.versions, Topics: test.topics, Cursor: cursor})
			require.NoError(t, err)
			for _, c := range claimed {
				got[fmt.Sprintf("%s %d", c.Topic, c.Version)]++
			}
			require.Equal(t, test.want, got)
			_, err = s.Release(t.Context(), claimed...)
			require.NoError(t, err)
		}
	}
}
