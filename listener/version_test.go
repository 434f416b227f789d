package listener_test

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestListenerStopsBeforeANewerVersion: what is before the event is done, the event is not charged, the other shards continue,
// a drain ends, and a running listener tries again once per poll. A process that knows the version gets the shard
// immediately, although it sleeps.
func TestListenerStopsBeforeANewerVersion(t *testing.T) {
	t.Parallel()
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		old, recent := runtimetest.NewNotes(), runtimetest.NewNotes()
		const stuck = "SELECT count(*) FROM outbox.listeners WHERE in_batch AND NOT running AND retry_count = 0 AND preferred IS NULL AND last_error IS NULL"
		spec := listener.Spec{Shards: 2}
		l := runtimetest.Ears(t, pool, transactional, runtimetest.SaidTopic, spec, listener.Config{PollInterval: 50 * time.Millisecond}, old)
		bucket := func(key string) int {
			return pgtest.Count(t, pool, "SELECT bucket % 2 FROM outbox.log WHERE partition_key = $1 LIMIT 1", key)
		}
		runtimetest.SayAs(t, pool, 1, "a", 1)
		runtimetest.SayAs(t, pool, 2, "a", 2)
		runtimetest.SayAs(t, pool, 1, "a", 3)
		other := ""
		for _, key := range []string{"b", "c", "d", "e", "f", "g", "h", "i"} {
			runtimetest.SayAs(t, pool, 1, key, 1)
			if bucket(key) != bucket("a") {
				other = key
			}
		}
		for range 3 {
			_, err := l.Drain(t.Context())
			require.NoError(t, err)
		}
		require.Equal(t, 1, pgtest.Count(t, pool, stuck))
		require.Contains(t, old.Names(), "a1")
		require.NotContains(t, old.Names(), "a2")
		require.NotContains(t, old.Names(), "a3")
		require.Contains(t, old.Names(), other+"1")

		watch := listener.Watch(l)
		stop := runtimetest.StartListener(t, l)
		for range 2 {
			pgtest.Receive(t, watch.Ended, "a try")
		}
		began := time.Now()
		for range 5 {
			pgtest.Receive(t, watch.Ended, "a try")
		}
		require.GreaterOrEqual(t, time.Since(began), 4*50*time.Millisecond*9/10, "one try per poll")
		done := len(old.Names())
		runtimetest.SayAs(t, pool, 1, other, 2)
		old.Await(t, done+1)
		require.Contains(t, old.Names(), other+"2")

		dozing := listener.Config{PollInterval: 20 * time.Minute, LeaseDuration: time.Hour}
		stopRecent := runtimetest.StartListener(t, runtimetest.Ears(t, pool, transactional, runtimetest.Newer(runtimetest.SaidTopic), spec, dozing, recent))
		pgtest.Settles(t, pool, 2, "SELECT count(*) FROM outbox.listeners WHERE NOT in_batch AND high_seq = (SELECT max(seq) FROM outbox.log)")
		n := 4
		for range 5 { // the old build may have the shard, and gives it to the other, which hardly ever polls
			pgtest.Execute(t, pool, "UPDATE outbox.listeners SET preferred = $1 WHERE NOT running", listener.ConfigOf(l).WorkerID)
			runtimetest.SayAs(t, pool, 2, "a", n)
			n++
			pgtest.Settles(t, pool, 2, "SELECT count(*) FROM outbox.listeners WHERE NOT in_batch AND high_seq = (SELECT max(seq) FROM outbox.log)")
		}
		stop()
		stopRecent()
		require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
		for _, d := range old.Got {
			require.Equal(t, 1, d.Version)
		}
		for _, d := range recent.Got {
			require.Equal(t, 1, d.Attempt)
		}
	})
}

// TestParkedNewerVersionWaits: a parked event of a newer version is not charged by a process that does not know it, which
// handles the other keys meanwhile.
func TestParkedNewerVersionWaits(t *testing.T) {
	t.Parallel()
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		old, recent := runtimetest.NewNotes(), runtimetest.NewNotes()
		var counted atomic.Int64 // attempts in the table while the second one runs
		recent.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
			switch {
			case d.Payload.N == 1 && d.Attempt == 1:
				return errors.New("not yet")
			case d.Payload.N == 1:
				counted.Store(int64(pgtest.Count(t, pool, "SELECT attempts FROM outbox.parked ORDER BY no LIMIT 1")))
			}
			return nil
		}
		spec := listener.Spec{ParkKeys: true}
		cfg := listener.Config{PollInterval: 20 * time.Millisecond}
		runtimetest.SayAs(t, pool, 2, "a", 1)
		runtimetest.SayAs(t, pool, 1, "a", 2)
		_, err := runtimetest.Ears(t, pool, transactional, runtimetest.Newer(runtimetest.SaidTopic), spec, cfg, recent).Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.parked"))
		runtimetest.RetryNow(t, pool)

		l := runtimetest.Ears(t, pool, transactional, runtimetest.SaidTopic, spec, cfg, old)
		runtimetest.SayAs(t, pool, 1, "b", 1)
		_, err = l.Drain(t.Context())
		require.NoError(t, err)
		watch := listener.Watch(l)
		stop := runtimetest.StartListener(t, l)
		runtimetest.SayAs(t, pool, 1, "b", 2)
		old.Await(t, 2)
		for range 5 {
			pgtest.Receive(t, watch.Ended, "a look at what is parked")
		}
		stop()
		require.Equal(t, []string{"b1", "b2"}, old.Names())
		require.Equal(t, 1, pgtest.Count(t, pool, "SELECT attempts FROM outbox.parked ORDER BY no LIMIT 1"))

		// After a crash, events are taken one by one and charged before: not this one.
		pgtest.Execute(t, pool, "UPDATE outbox.parked SET taken = 50, retry_after = now() - interval '1 s' WHERE retry_after IS NOT NULL")
		pgtest.Execute(t, pool, "UPDATE outbox.listeners SET one_by_one = 3")
		runtimetest.SayAs(t, pool, 1, "b", 3)
		_, err = l.Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"b1", "b2", "b3"}, old.Names())
		require.Equal(t, 1, pgtest.Count(t, pool, "SELECT attempts FROM outbox.parked ORDER BY no LIMIT 1"))
		require.Equal(t, 50, pgtest.Count(t, pool, "SELECT taken FROM outbox.parked ORDER BY no LIMIT 1"), "it may still have killed its process")

		pgtest.Execute(t, pool, "UPDATE outbox.listeners SET one_by_one = 0")
		stopOld := runtimetest.StartListener(t, l)
		stopRecent := runtimetest.StartListener(t, runtimetest.Ears(t, pool, transactional, runtimetest.Newer(runtimetest.SaidTopic), spec, cfg, recent))
		pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.parked")
		stopOld()
		stopRecent()
		require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
		require.Equal(t, int64(2), counted.Load(), "it may kill this process too, although the log was handled since")
	})
}

// TestNewerVersionBehindAParkedKey: an event of a newer version is parked behind a failed event of its key like any other, and
// the listener continues behind it.
func TestNewerVersionBehindAParkedKey(t *testing.T) {
	t.Parallel()
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		h := runtimetest.NewNotes()
		h.Fail = runtimetest.FailFor("a")
		l := runtimetest.Ears(t, pool, transactional, runtimetest.SaidTopic, listener.Spec{ParkKeys: true}, listener.Config{}, h)
		runtimetest.SayAs(t, pool, 1, "a", 1)
		runtimetest.SayAs(t, pool, 2, "a", 2)
		for n := range 3 {
			runtimetest.SayAs(t, pool, 1, "b", n)
		}
		runtimetest.SayAs(t, pool, 2, "a", 3)
		runtimetest.SayAs(t, pool, 1, "c", 1)
		runtimetest.DrainAll(t, l)
		require.Equal(t, []string{"b0", "b1", "b2", "c1"}, h.Names())
		require.Equal(t, 3, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.parked"))
		require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.listeners WHERE NOT in_batch"))
	})
}

// TestShardGoesToAProcessThatKnows: a shard that is given up before an event of a newer version is left to a process that knows
// it, which is woken, and not asked back.
func TestShardGoesToAProcessThatKnows(t *testing.T) {
	t.Parallel()
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		old, recent := runtimetest.NewNotes(), runtimetest.NewNotes()
		spec := listener.Spec{Shards: 2}
		l := runtimetest.Ears(t, pool, transactional, runtimetest.SaidTopic, spec, listener.Config{PollInterval: 20 * time.Millisecond}, old)
		knows := uuid.New()
		process := "INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics, seen_at) VALUES ($1, $2, $3, 'box', 1, $4, now() - $5::interval)"
		for _, p := range []struct{ kind, name, topics, ago string }{
			{"listener", "ears", `{"test/said": {"version": 1}}`, "1 s"}, {"listener", "eyes", `{"test/said": {"version": 2}}`, "1 s"},
			{"dispatcher", "ears", `{"test/said": {"version": 2}}`, "1 s"}, {"listener", "ears", `{"test/said": {"version": 2}}`, "2 min"},
			{"listener", "ears", `{"test/other": {"version": 2}}`, "1 s"}, {"listener", "ears", `[]`, "1 s"},
		} {
			pgtest.Execute(t, pool, process, uuid.New(), p.kind, p.name, p.topics, p.ago)
		}
		runtimetest.SayAs(t, pool, 2, "a", 1)
		_, err := l.Drain(t.Context())
		require.NoError(t, err)
		require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.listeners WHERE preferred IS NOT NULL"))
		pgtest.Execute(t, pool, process, knows, "listener", "ears", `{"test/said": {"version": 3}}`, "1 s")
		_, err = l.Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.listeners WHERE preferred = $1", knows))
		pgtest.Execute(t, pool, "DELETE FROM outbox.processes")
		pgtest.Execute(t, pool, "UPDATE outbox.listeners SET preferred = NULL")

		pgtest.Execute(t, pool, `CREATE TABLE asked (n int);
			CREATE FUNCTION ask() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO asked VALUES (1); RETURN NEW; END $$;
			CREATE TRIGGER ask AFTER UPDATE ON outbox.listeners FOR EACH ROW WHEN (NEW.wanted_by = '`+listener.ConfigOf(l).WorkerID.String()+`') EXECUTE FUNCTION ask()`)
		stopRecent := runtimetest.StartListener(t, runtimetest.Ears(t, pool, transactional, runtimetest.Newer(runtimetest.SaidTopic), spec, listener.Config{PollInterval: 20 * time.Minute, LeaseDuration: time.Hour}, recent))
		recent.Await(t, 1)
		const read = "SELECT count(*) FROM outbox.listeners WHERE NOT in_batch AND high_seq = (SELECT max(seq) FROM outbox.log)"
		for n, handed := 0, 0; handed < 3; n++ {
			pgtest.Settles(t, pool, 2, read)
			old.Hold = make(chan struct{})
			stop := runtimetest.StartListener(t, l)
			pgtest.Execute(t, pool, "UPDATE outbox.listeners SET preferred = $1 WHERE NOT running", listener.ConfigOf(l).WorkerID)
			runtimetest.SayAs(t, pool, 1, "a", 2*n+2)
			isOld, name := false, fmt.Sprint("a", 2*n+2)
			pgtest.Eventually(t, func() bool { // the other one is woken, too, and may be faster
				select {
				case <-old.Started:
					isOld = true
				default:
				}
				return isOld || slices.Contains(recent.Names(), name)
			})
			if !isOld {
				close(old.Hold)
				stop()
				continue
			}
			handed++
			runtimetest.SayAs(t, pool, 2, "a", 2*n+3) // the other one is woken now, and cannot have it
			pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE running AND lease_by = $1", listener.ConfigOf(l).WorkerID)
			pgtest.Execute(t, pool, "TRUNCATE asked")
			close(old.Hold)
			pgtest.Settles(t, pool, 2, read)
			require.Contains(t, recent.Names(), fmt.Sprint("a", 2*n+3))
			stop()
		}
		require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM asked"))
		stopRecent()
	})
}
