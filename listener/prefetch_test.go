package listener_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// reading returns a listener whose leases continue however slow its handler is. The handler calls act first.
func reading(t *testing.T, pool *pgxpool.Pool, spec listener.Spec, size int, act func(name string) error) (*listener.Listener, *runtimetest.Notes) {
	t.Helper()
	h := runtimetest.NewNotes()
	h.Fail = func(d outbox.Delivery[runtimetest.Said]) error { return act(d.Payload.Key + strconv.Itoa(d.Payload.N)) }
	l := runtimetest.ListenTo(t, pool, spec, listener.Config{BatchSize: size, PruneInterval: -1}, h)
	listener.LimitLeaseAge(l, time.Hour)
	return l, h
}

func well(string) error { return nil }

func leasesOf(t testing.TB, pool *pgxpool.Pool) int {
	t.Helper()
	return pgtest.Value[int](t, pool, "SELECT lease_no::int - 1 FROM outbox.listeners") // the lease of the stop counts too
}

// A lease continues to the end of its window, for at most eight batches.
func TestLeaseContinuesWithTheNextBatch(t *testing.T) {
	t.Parallel()
	for events, want := range map[int]int{2: 2, 3: 1, 4: 2, 15: 1, 16: 2, 17: 2, 31: 2, 33: 3} { // a full batch does not show that the window has no more
		t.Run(strconv.Itoa(events), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			runtimetest.NewCrowd("a", "b").Enqueue(t, pool, events)
			l, h := reading(t, pool, listener.Spec{}, 2, well)
			require.Equal(t, listener.Report{Delivered: events}, runtimetest.DrainAll(t, l))
			require.Equal(t, events, h.InOrder(t))
			require.Equal(t, want, leasesOf(t, pool))
			require.Equal(t, 1, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM outbox.listeners WHERE NOT in_batch AND high_seq = $1", events))
		})
	}
}

// A full lease ends, and the next one begins with the batch that was read ahead, unless that must be read again.
func TestNextLeaseBeginsWithWhatWasReadAhead(t *testing.T) {
	t.Parallel()
	all := make([]int, 49)
	for i := range all {
		all[i] = i + 1
	}
	for name, c := range map[string]struct {
		change          string // of the cursor, at the end of the first lease, whose last event is the 16th
		leases, carried int
		want            []int // events
	}{
		"as it was read": {leases: 4, carried: 3, want: all},
		// The lease after the full one handles 9 of the 25 each in a lease of its own. The last lease finds nothing.
		"one by one":      {change: "one_by_one := 9", leases: 1 + 9 + 3, carried: 1, want: all},
		"another place":   {change: "last_seq := 12", leases: 4, carried: 2, want: slices.Concat(all[:16], all[12:])},
		"done ahead":      {change: "ahead_seqs := '{18}'; NEW.ahead_attempts := '{0}'", leases: 4, carried: 1, want: slices.Concat(all[:17], all[18:])},
		"attempted ahead": {change: "retry_count := 3", leases: 4, carried: 2, want: all},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			for n := range all {
				runtimetest.Put(t, pool, "a", n+1)
			}
			if c.change != "" {
				pgtest.Execute(t, pool, `CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.`+c.change+`; RETURN NEW; END $$`)
				pgtest.Execute(t, pool, `CREATE TRIGGER change BEFORE UPDATE ON outbox.listeners FOR EACH ROW
					WHEN (NEW.lease_no = 1 AND OLD.running AND NOT NEW.running) EXECUTE FUNCTION change()`)
			}
			l, h := reading(t, pool, listener.Spec{}, 2, well)
			carried := make(chan struct{}, 10)
			listener.WatchCarried(l, carried)
			runtimetest.DrainAll(t, l)
			var got []int
			for _, d := range h.Got {
				got = append(got, d.Payload.N)
				if d.Payload.N == 17 && name == "attempted ahead" {
					require.Equal(t, 4, d.Attempt)
				}
			}
			require.Equal(t, c.want, got)
			require.Equal(t, c.leases, leasesOf(t, pool))
			require.Len(t, carried, c.carried)
		})
	}
}

// With slow handlers each batch has its own lease, so that other processes need not wait longer.
func TestLeaseOfSlowHandlersEndsAfterOneBatch(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	runtimetest.PutAll(t, pool, "a1", "a2", "a3", "a4", "a5")
	l, h := reading(t, pool, listener.Spec{}, 2, well)
	listener.LimitLeaseAge(l, time.Nanosecond)
	runtimetest.DrainAll(t, l)
	require.Equal(t, 5, h.InOrder(t))
	require.Equal(t, 3, leasesOf(t, pool))
}

// Positions of other shards and topics are skipped, and count.
func TestLeaseContinuesPastEventsOfOthers(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	c := runtimetest.NewCrowd("a", "b", "c", "d", "e", "f", "g", "h")
	unheard := outbox.NewTopic[runtimetest.Said](outbox.TopicSpec{Namespace: "test", Name: "unheard", Version: 1, Log: true})
	for range 20 {
		c.Enqueue(t, pool, 3)
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			_, err := unheard.Enqueue(t.Context(), tx, runtimetest.Said{})
			require.NoError(t, err)
		})
	}
	went := make(chan struct{}, 1)
	l, h := reading(t, pool, listener.Spec{Shards: 2}, 4, well)
	listener.WatchContinued(l, went)
	runtimetest.DrainAll(t, l)
	require.Equal(t, 60, h.InOrder(t))
	require.NotEmpty(t, went)
}

// An event that commits while a lease continues is not in its window, whatever its position.
func TestPrefetchKeepsToTheWindow(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	runtimetest.PutAll(t, pool, "a1", "a2", "a3", "a4")
	late := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := runtimetest.SaidTopic.Enqueue(t.Context(), late, runtimetest.Said{Key: "b", N: 1})
	require.NoError(t, err)
	runtimetest.PutAll(t, pool, "a5", "a6", "a7")
	l, h := reading(t, pool, listener.Spec{}, 2, func(name string) error {
		if name == "a1" { // the second batch is read by now, or soon, the third is not
			require.NoError(t, late.Commit(t.Context()))
			runtimetest.PutAll(t, pool, "c1")
		}
		return nil
	})
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"a1", "a2", "a3", "a4", "a5", "a6", "a7", "b1", "c1"}, h.Names())
}

// Stragglers lie among events that were delivered long ago. Those are not read again.
func TestPrefetchAmongStragglers(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	late := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := runtimetest.SaidTopic.EnqueueMany(t.Context(), late, []runtimetest.Said{{Key: "b", N: 1}, {Key: "b", N: 2}, {Key: "b", N: 3}})
	require.NoError(t, err)
	runtimetest.PutAll(t, pool, "a1", "a2")
	_, err = runtimetest.SaidTopic.Enqueue(t.Context(), late, runtimetest.Said{Key: "b", N: 4})
	require.NoError(t, err)
	runtimetest.PutAll(t, pool, "a3")
	l, h := reading(t, pool, listener.Spec{}, 2, well)
	runtimetest.DrainAll(t, l)
	require.NoError(t, late.Commit(t.Context()))
	runtimetest.PutAll(t, pool, "a4", "a5", "a6", "a7")
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"a1", "a2", "a3", "b1", "b2", "b3", "b4", "a4", "a5", "a6", "a7"}, h.Names())
}

// A process that has lost the shard handles nothing that it reads afterwards, whichever process has the shard now.
func TestPrefetchOfALostShard(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*testing.T, *pgxpool.Pool){
		"rewound": func(t *testing.T, pool *pgxpool.Pool) {
			_, err := runtimetest.AdminOf(t, pool).Rewind(t.Context(), "ears", time.Time{})
			require.NoError(t, err)
		},
		"taken by a worker of the same name": func(t *testing.T, pool *pgxpool.Pool) {
			pgtest.Execute(t, pool, "UPDATE outbox.listeners SET lease_no = lease_no + 1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			all := []string{"a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"}
			runtimetest.PutAll(t, pool, all...)
			lost := false
			l, h := reading(t, pool, listener.Spec{}, 2, func(name string) error {
				if name == "a3" && !lost { // the third batch is read by now, or soon, the fourth is not
					lost = true
					lose(t, pool)
				}
				return nil
			})
			report := runtimetest.DrainAll(t, l)
			require.Equal(t, len(all), report.Delivered)
			require.Contains(t, []int{4, 6}, report.Lost, "each of them is reported")
			require.Equal(t, slices.Concat(all[:report.Lost], all), h.Names())
		})
	}
}

// An event that fails blocks what was read ahead.
func TestPrefetchBehindAFailure(t *testing.T) {
	t.Parallel()
	for _, park := range []bool{false, true} {
		t.Run("park "+strconv.FormatBool(park), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			runtimetest.PutAll(t, pool, "a1", "a2", "a3", "a4", "a5", "a6", "a7")
			failed := false
			l, h := reading(t, pool, listener.Spec{ParkKeys: park, Retry: soon(3)}, 2, func(name string) error {
				if name == "a3" && !failed {
					failed = true
					return runtimetest.ErrHandler
				}
				return nil
			})
			stop := runtimetest.StartListener(t, l)
			h.Await(t, 7)
			stop()
			require.Equal(t, 7, h.InOrder(t))
			require.Equal(t, 2, h.Got[2].Attempt)
		})
	}
}

// A lease continues although keys are parked. Events of those keys that are read ahead are parked too.
func TestPrefetchWithParkedKeys(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	runtimetest.PutAll(t, pool, "x1")
	l, h := reading(t, pool, listener.Spec{ParkKeys: true, Retry: outbox.Retry{BaseDelay: time.Hour}}, 2, func(name string) error {
		if name == "x1" {
			return runtimetest.ErrHandler
		}
		return nil
	})
	runtimetest.DrainAll(t, l)
	runtimetest.PutAll(t, pool, "a1", "a2", "a3", "x2", "a4", "x3", "x4", "a5")
	went := make(chan struct{}, 1)
	listener.WatchContinued(l, went)
	runtimetest.DrainAll(t, l)
	require.NotEmpty(t, went, "the lease continues")
	require.Equal(t, 5, h.InOrder(t))
	require.Equal(t, 4, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM outbox.parked"))
	runtimetest.RetryNow(t, pool)
	l, again := reading(t, pool, listener.Spec{ParkKeys: true}, 2, well)
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"x1", "x2", "x3", "x4"}, again.Names())
}

// The events after an event that the lease itself parks, because its target is unavailable, are parked behind it.
func TestPrefetchOfKeysThatTheLeaseParks(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	in := enqueueToBoth(t, pool)
	var sent []string
	note := func(events []publish.Outgoing) {
		for _, e := range events {
			sent = append(sent, string(e.Payload))
		}
	}
	l := relayToBoth(t, pool, time.Hour, &runtimetest.TwoDestinations{Good: note, Bad: runtimetest.BadDestinations["refusing"]})
	went, carried := make(chan struct{}, 1), make(chan struct{}, 1)
	listener.WatchContinued(l, went)
	listener.WatchCarried(l, carried)
	runtimetest.DrainAll(t, l)
	require.NotEmpty(t, went, "the lease continues")
	require.NotEmpty(t, carried, "and the next one begins with what it has read")
	require.Equal(t, in, sent)
	require.Equal(t, "20 1", pgtest.Value[string](t, pool, "SELECT count(*) || ' ' || count(retry_after) FROM outbox.parked"), "one head")

	runtimetest.RetryNow(t, pool)
	sent = nil
	l = relayToBoth(t, pool, time.Hour, &runtimetest.TwoDestinations{Good: note, Bad: func(_ context.Context, events []publish.Outgoing) []error {
		note(events)
		return make([]error, len(events))
	}})
	runtimetest.DrainAll(t, l)
	require.Equal(t, in, sent)
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.parked"))
}

// They stay behind it when the target is available again before they are read.
func TestPrefetchOfKeysThatTheLeaseParksForAShortTime(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	in := enqueueToBoth(t, pool)
	var sent []string
	refused := false
	l := relayToBoth(t, pool, time.Millisecond, &runtimetest.TwoDestinations{Good: func([]publish.Outgoing) {}, Bad: func(_ context.Context, events []publish.Outgoing) []error {
		errs := make([]error, len(events))
		for i, e := range events {
			if !refused {
				refused, errs[i] = true, outbox.Unavailable(runtimetest.ErrHandler)
				continue
			}
			sent = append(sent, string(e.Payload))
		}
		return errs
	}})
	for pgtest.Count(t, pool, "SELECT count(*) FROM outbox.parked") > 0 || len(sent) == 0 {
		runtimetest.RetryNow(t, pool)
		runtimetest.DrainAll(t, l)
	}
	require.Equal(t, in, sent)
}

// enqueueToBoth enqueues events of one key to two destinations, more than a lease has, and returns their payloads.
func enqueueToBoth(t *testing.T, pool *pgxpool.Pool) (payloads []string) {
	t.Helper()
	bad, good := runtimetest.DestinationTopics(true)
	for n := range 20 {
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			for _, topic := range []outbox.Topic[runtimetest.Said]{bad, good} {
				_, err := topic.Enqueue(t.Context(), tx, runtimetest.Said{Key: "k", N: n})
				require.NoError(t, err)
			}
		})
		payloads = append(payloads, fmt.Sprintf(`{"n": %d, "key": "k"}`, n))
	}
	return payloads
}

// relayToBoth returns a listener with small batches that publishes them. pause is how long a destination rests.
func relayToBoth(t *testing.T, pool *pgxpool.Pool, pause time.Duration, to publish.Publisher) *listener.Listener {
	t.Helper()
	bad, good := runtimetest.DestinationTopics(true)
	l, err := listener.New(pool, listener.Spec{Name: "both"}, listener.Config{
		BatchSize: 2, PruneInterval: -1, Logger: runtimetest.DiscardLogger(), Publishers: map[string]publish.Publisher{"kafka": to},
		Breaker: outbox.Breaker{FirstPause: pause, MaxPause: time.Hour},
	},
		listener.Publish(bad, publish.Publication{Broker: "kafka", Destination: "bad"}),
		listener.Publish(good, publish.Publication{Broker: "kafka", Destination: "good"}))
	require.NoError(t, err)
	listener.LimitLeaseAge(l, time.Hour)
	return l
}

// Events that are already done behind a failed one are not handled again when they are read ahead.
func TestPrefetchOfWhatIsDone(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	runtimetest.PutAll(t, pool, "a1", "a2", "a3", "b1", "a4", "a5", "a6", "a7")
	spec := listener.Spec{Concurrency: 2, Retry: outbox.Retry{BaseDelay: time.Hour}}
	failing := true
	act := func(name string) error {
		if name == "a1" && failing {
			return runtimetest.ErrHandler
		}
		return nil
	}
	l, h := reading(t, pool, spec, 4, act)
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"b1"}, h.Names())
	failing = false
	runtimetest.RetryNow(t, pool)
	l, again := reading(t, pool, spec, 2, act) // restarted with smaller batches
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"a1", "a2", "a3", "a4", "a5", "a6", "a7"}, again.Names())
}

// What is read ahead does not depend on how pgx is set up for a pooler.
func TestPrefetchInEveryModeOfQueries(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			cfg, err := pgxpool.ParseConfig(pgtest.URL(t, pool))
			require.NoError(t, err)
			cfg.ConnConfig.DefaultQueryExecMode = mode
			cfg.MaxConns = 1
			narrow, err := pgxpool.NewWithConfig(t.Context(), cfg)
			require.NoError(t, err)
			t.Cleanup(narrow.Close)
			runtimetest.NewCrowd("a", "b").Enqueue(t, pool, 7)
			pgtest.InTx(t, pool, func(tx pgx.Tx) {
				_, err := runtimetest.SaidTopic.Enqueue(t.Context(), tx, runtimetest.Said{Key: "c", N: 1}, outbox.WithHeaders(map[string]string{"of": "c"}))
				require.NoError(t, err)
			})
			l, h := reading(t, narrow, listener.Spec{}, 3, well)
			runtimetest.DrainAll(t, l)
			require.Equal(t, 8, h.InOrder(t))
			require.Equal(t, "c", h.Got[7].Headers["of"])
			require.Equal(t, 1, leasesOf(t, pool))
		})
	}
}
