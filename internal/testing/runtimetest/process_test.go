package runtimetest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// runner starts a dispatcher of jobs/one, or a listener of test/said and test/loose.
type runner struct {
	want  admin.Process // of its row
	start func(t *testing.T, pool *pgxpool.Pool, worker uuid.UUID, spy *runtimetest.LogSpy, fn func() error) (stop func())
	put   func(t *testing.T, pool *pgxpool.Pool)
}

func runners() map[string]runner {
	job := runtimetest.Altered(runtimetest.JobTopic("one"), func(s *outbox.TopicSpec) { s.Version, s.MaxLag = 3, 90*time.Second })
	breaker := outbox.Breaker{FirstPause: 10 * time.Millisecond, MaxPause: 20 * time.Millisecond}
	return map[string]runner{
		"dispatcher": {
			want: admin.Process{
				Kind: admin.ProcessDispatcher, Name: "jobs", TenantIDs: []uuid.UUID{runtimetest.TenantA},
				Topics: map[string]admin.ProcessTopic{"jobs/one": {Version: 3, MaxLag: 90 * time.Second}},
			},
			start: func(t *testing.T, pool *pgxpool.Pool, worker uuid.UUID, spy *runtimetest.LogSpy, fn func() error) func() {
				cfg := runtimetest.QuickConfig()
				cfg.WorkerID, cfg.TenantIDs, cfg.Logger, cfg.Breaker = worker, []uuid.UUID{runtimetest.TenantA}, spy.Logger(), breaker
				handler := runtimetest.OnJob(job, func(context.Context, outbox.Delivery[runtimetest.Job]) error { return fn() })
				stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, handler))
				return func() { require.NoError(t, stop()) }
			},
			put: func(t *testing.T, pool *pgxpool.Pool) {
				runtimetest.EnqueueJobs(t, pool, job, runtimetest.Job{TenantID: runtimetest.TenantA})
			},
		},
		"listener": {
			want: admin.Process{
				Kind: admin.ProcessListener, Name: "ears",
				Topics: map[string]admin.ProcessTopic{"test/said": {Version: 1}, "test/loose": {Version: 1}},
			},
			start: func(t *testing.T, pool *pgxpool.Pool, worker uuid.UUID, spy *runtimetest.LogSpy, fn func() error) func() {
				h := runtimetest.NewNotes()
				h.Fail = func(outbox.Delivery[runtimetest.Said]) error { return fn() }
				cfg := listener.Config{WorkerID: worker, PollInterval: 50 * time.Millisecond, Logger: spy.Logger(), Breaker: breaker}
				return runtimetest.StartListener(t, runtimetest.ListenTo(t, pool, listener.Spec{}, cfg, h))
			},
			put: func(t *testing.T, pool *pgxpool.Pool) { runtimetest.Put(t, pool, "a", 1) },
		},
	}
}

// rows lists the processes without what each run changes.
func rows(t *testing.T, pool *pgxpool.Pool) []admin.Process {
	t.Helper()
	all, err := runtimetest.AdminOf(t, pool).Processes(t.Context())
	require.NoError(t, err)
	for i := range all {
		require.NotEmpty(t, all[i].Host)
		require.Positive(t, all[i].PID)
		require.WithinDuration(t, time.Now(), all[i].StartedAt, time.Hour)
		require.False(t, all[i].SeenAt.Before(all[i].StartedAt))
		all[i].Host, all[i].PID, all[i].StartedAt, all[i].SeenAt = "", 0, time.Time{}, time.Time{}
	}
	return all
}

// TestRunnersSayWhatTheyRun: a running dispatcher or listener has a row, also without a shard; it says what rests and why, and
// is deleted at the stop.
func TestRunnersSayWhatTheyRun(t *testing.T) {
	t.Parallel()
	for name, r := range runners() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			workers := []uuid.UUID{uuid.New(), uuid.New()}
			away := make(chan struct{})
			fn := func() error {
				select {
				case <-away:
					return nil
				default:
					return outbox.Unavailable(errors.New("the mail server moves"))
				}
			}
			var stops []func()
			var want []admin.Process
			for i, worker := range workers {
				stops = append(stops, r.start(t, pool, worker, runtimetest.NewLogSpy(), fn))
				pgtest.Settles(t, pool, i+1, "SELECT count(*) FROM outbox.processes")
				w := r.want
				w.WorkerID, w.Alive, w.Resting = worker, true, map[string]string{}
				want = append(want, w)
			}
			require.Equal(t, want, rows(t, pool))

			r.put(t, pool)
			pgtest.Eventually(t, func() bool {
				for _, p := range rows(t, pool) {
					for topic, why := range p.Resting {
						require.Contains(t, r.want.Topics, topic)
						require.Contains(t, why, "the mail server moves")
						return true
					}
				}
				return false
			})
			close(away)
			// A process that gets no event cannot know, for example one whose shard another one has taken over meanwhile.
			pgtest.Eventually(t, func() bool {
				r.put(t, pool)
				return pgtest.Count(t, pool, `SELECT count(*) FROM outbox.processes AS p WHERE p.resting <> '{}'
					AND NOT EXISTS (SELECT FROM outbox.listeners AS l WHERE p.kind = 'listener' AND l.lease_by <> p.worker_id)`) == 0
			})
			stops[0]()
			pgtest.Eventually(t, func() bool {
				r.put(t, pool)
				return pgtest.Count(t, pool, "SELECT count(*) FROM outbox.processes WHERE resting <> '{}'") == 0
			})
			require.Equal(t, want[1:], rows(t, pool))
			pgtest.Execute(t, pool, "UPDATE outbox.processes SET seen_at = now() - interval '85 s', started_at = now() - interval '2 min'")
			require.True(t, rows(t, pool)[0].Alive)
			pgtest.Execute(t, pool, "UPDATE outbox.processes SET seen_at = now() - interval '91 s', started_at = now() - interval '2 min'")
			require.False(t, rows(t, pool)[0].Alive)
			stops[1]()
			require.Empty(t, rows(t, pool))
		})
	}
}

// TestRunnersWorkWithoutTheirRow: a role that may not write the table processes delivers nevertheless, and one line says so.
func TestRunnersWorkWithoutTheirRow(t *testing.T) {
	t.Parallel()
	for name, r := range runners() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			limited := runtimetest.As(t, pool, "ALL ON ALL TABLES IN SCHEMA outbox", "ALL ON ALL SEQUENCES IN SCHEMA outbox")
			role := limited.Config().ConnConfig.RuntimeParams["role"]
			pgtest.Execute(t, pool, "REVOKE ALL ON outbox.processes FROM "+role)
			spy := runtimetest.NewLogSpy()
			handled := make(chan struct{}, 1)
			stop := r.start(t, limited, uuid.New(), spy, func() error {
				handled <- struct{}{}
				return nil
			})
			r.put(t, pool)
			pgtest.Receive(t, handled, "the event")
			spy.Await(t, "cannot write to the table processes")
			stop()
			require.Equal(t, 1, strings.Count(spy.String(), "cannot write to the table processes"))
		})
	}
}
