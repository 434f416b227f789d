package outbox_test

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// reading is a listener of batches of two whose leases go on however slow its handler is, which calls act first.
func reading(t *testing.T, pool *pgxpool.Pool, spec outbox.ListenerSpec, size int, act func(name string) error) (*outbox.Listener, *notes) {
	t.Helper()
	h := newNotes()
	h.fail = func(d outbox.Delivery[said]) error { return act(d.Payload.Key + strconv.Itoa(d.Payload.N)) }
	l := listenTo(t, pool, spec, outbox.ListenerConfig{BatchSize: size, PruneInterval: -1}, h)
	outbox.LimitLeaseAge(l, time.Hour)
	return l, h
}

func well(string) error { return nil }

func leasesOf(t testing.TB, pool *pgxpool.Pool) int {
	t.Helper()
	return value[int](t, pool, "SELECT lease_no::int - 1 FROM outbox.listeners") // the stop behind it counts as well
}

// A lease goes on to the end of its window, for eight batches at most.
func TestLeaseContinuesWithTheNextBatch(t *testing.T) {
	t.Parallel()
	for events, want := range map[int]int{2: 2, 3: 1, 4: 2, 15: 1, 16: 2, 17: 2, 31: 2, 33: 3} { // at a full batch nobody knows that there is no more
		t.Run(strconv.Itoa(events), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			newCrowd("a", "b").enqueue(t, pool, events)
			l, h := reading(t, pool, outbox.ListenerSpec{}, 2, well)
			require.Equal(t, outbox.DrainReport{Delivered: events}, drainAll(t, l))
			require.Equal(t, events, h.inOrder(t))
			require.Equal(t, want, leasesOf(t, pool))
			require.Equal(t, 1, value[int](t, pool, "SELECT count(*)::int FROM outbox.listeners WHERE NOT in_batch AND high_seq = $1", events))
		})
	}
}

// Slow handlers have a lease for each batch, so that others need not wait longer than before.
func TestLeaseOfSlowHandlersEndsAfterOneBatch(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	putAll(t, pool, "a1", "a2", "a3", "a4", "a5")
	l, h := reading(t, pool, outbox.ListenerSpec{}, 2, well)
	outbox.LimitLeaseAge(l, time.Nanosecond)
	drainAll(t, l)
	require.Equal(t, 5, h.inOrder(t))
	require.Equal(t, 3, leasesOf(t, pool))
}

// Positions of other shards and topics are passed, and count.
func TestLeaseContinuesPastEventsOfOthers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	c := newCrowd("a", "b", "c", "d", "e", "f", "g", "h")
	unheard := outbox.NewTopic[said](outbox.TopicSpec{Namespace: "test", Name: "unheard", Version: 1, Log: true})
	for range 20 {
		c.enqueue(t, pool, 3)
		inTx(t, pool, func(tx pgx.Tx) {
			_, err := unheard.Untyped().Enqueue(t.Context(), tx, said{})
			require.NoError(t, err)
		})
	}
	went := make(chan struct{}, 1)
	l, h := reading(t, pool, outbox.ListenerSpec{Shards: 2}, 4, well)
	outbox.WatchContinued(l, went)
	drainAll(t, l)
	require.Equal(t, 60, h.inOrder(t))
	require.NotEmpty(t, went)
}

// What commits while a lease goes on is not in its window, whatever its position.
func TestPrefetchKeepsToTheWindow(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	putAll(t, pool, "a1", "a2", "a3", "a4")
	late := begin(t, pool, pgx.TxOptions{})
	_, err := saidTopic.Untyped().Enqueue(t.Context(), late, said{Key: "b", N: 1})
	require.NoError(t, err)
	putAll(t, pool, "a5", "a6", "a7")
	l, h := reading(t, pool, outbox.ListenerSpec{}, 2, func(name string) error {
		if name == "a1" { // the second batch is read by now, or soon, the third is not
			require.NoError(t, late.Commit(t.Context()))
			putAll(t, pool, "c1")
		}
		return nil
	})
	drainAll(t, l)
	require.Equal(t, []string{"a1", "a2", "a3", "a4", "a5", "a6", "a7", "b1", "c1"}, h.names())
}

// Stragglers are among what was delivered long ago: that is not read again.
func TestPrefetchAmongStragglers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	late := begin(t, pool, pgx.TxOptions{})
	_, err := saidTopic.Untyped().EnqueueMany(t.Context(), late, []said{{Key: "b", N: 1}, {Key: "b", N: 2}, {Key: "b", N: 3}})
	require.NoError(t, err)
	putAll(t, pool, "a1", "a2")
	_, err = saidTopic.Untyped().Enqueue(t.Context(), late, said{Key: "b", N: 4})
	require.NoError(t, err)
	putAll(t, pool, "a3")
	l, h := reading(t, pool, outbox.ListenerSpec{}, 2, well)
	drainAll(t, l)
	require.NoError(t, late.Commit(t.Context()))
	putAll(t, pool, "a4", "a5", "a6", "a7")
	drainAll(t, l)
	require.Equal(t, []string{"a1", "a2", "a3", "b1", "b2", "b3", "b4", "a4", "a5", "a6", "a7"}, h.names())
}

// Who has lost the shard goes on with nothing that it reads afterwards, whoever has it now.
func TestPrefetchOfALostShard(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*testing.T, *pgxpool.Pool){
		"rewound": func(t *testing.T, pool *pgxpool.Pool) {
			_, err := adminOf(t, pool).Rewind(t.Context(), "ears", time.Time{})
			require.NoError(t, err)
		},
		"taken by a worker of the same name": func(t *testing.T, pool *pgxpool.Pool) {
			execute(t, pool, "UPDATE outbox.listeners SET lease_no = lease_no + 1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			all := []string{"a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"}
			putAll(t, pool, all...)
			lost := false
			l, h := reading(t, pool, outbox.ListenerSpec{}, 2, func(name string) error {
				if name == "a3" && !lost { // the third batch is read by now, or soon, the fourth is not
					lost = true
					lose(t, pool)
				}
				return nil
			})
			report := drainAll(t, l)
			require.Equal(t, len(all), report.Delivered)
			require.Contains(t, []int{4, 6}, report.Lost, "each of them is told")
			require.Equal(t, slices.Concat(all[:report.Lost], all), h.names())
		})
	}
}

// An event that fails holds up what was read ahead.
func TestPrefetchBehindAFailure(t *testing.T) {
	t.Parallel()
	for _, park := range []bool{false, true} {
		t.Run("park "+strconv.FormatBool(park), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			putAll(t, pool, "a1", "a2", "a3", "a4", "a5", "a6", "a7")
			failed := false
			l, h := reading(t, pool, outbox.ListenerSpec{ParkKeys: park, Retry: soon(3)}, 2, func(name string) error {
				if name == "a3" && !failed {
					failed = true
					return errHandler
				}
				return nil
			})
			stop := startListener(t, l)
			h.await(t, 7)
			stop()
			require.Equal(t, 7, h.inOrder(t))
			require.Equal(t, 2, h.got[2].Attempt)
		})
	}
}

// A lease continues although keys are parked, and what is read ahead of those keys joins what is parked.
func TestPrefetchWithParkedKeys(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	putAll(t, pool, "x1")
	l, h := reading(t, pool, outbox.ListenerSpec{ParkKeys: true, Retry: outbox.Retry{BaseDelay: time.Hour}}, 2, func(name string) error {
		if name == "x1" {
			return errHandler
		}
		return nil
	})
	drainAll(t, l)
	putAll(t, pool, "a1", "a2", "a3", "x2", "a4", "x3", "x4", "a5")
	went := make(chan struct{}, 1)
	outbox.WatchContinued(l, went)
	drainAll(t, l)
	require.NotEmpty(t, went, "the lease continues")
	require.Equal(t, 5, h.inOrder(t))
	require.Equal(t, 4, value[int](t, pool, "SELECT count(*)::int FROM outbox.parked"))
	retryNow(t, pool)
	l, again := reading(t, pool, outbox.ListenerSpec{ParkKeys: true}, 2, well)
	drainAll(t, l)
	require.Equal(t, []string{"x1", "x2", "x3", "x4"}, again.names())
}

// What comes behind an event that the lease itself parks, because its target is away, is parked behind it.
func TestPrefetchOfKeysThatTheLeaseParks(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	bad, good := destinationTopics(true)
	for n := range 4 {
		inTx(t, pool, func(tx pgx.Tx) {
			for _, topic := range []outbox.Topic[said]{bad, good} {
				_, err := topic.Untyped().Enqueue(t.Context(), tx, said{Key: "k", N: n})
				require.NoError(t, err)
			}
		})
	}
	relay := func(answer func(context.Context, []outbox.Outgoing) []error) (*outbox.Listener, *[]string) {
		var sent []string
		note := func(events []outbox.Outgoing) {
			for _, e := range events {
				sent = append(sent, string(e.Payload))
			}
		}
		d := &twoDestinations{good: note, bad: func(ctx context.Context, events []outbox.Outgoing) []error {
			if answer != nil {
				return answer(ctx, events)
			}
			note(events)
			return make([]error, len(events))
		}}
		l, err := outbox.NewListener(pool, outbox.ListenerSpec{Name: "both"}, outbox.ListenerConfig{
			BatchSize: 2, PruneInterval: -1, Logger: quiet(), Publishers: map[string]outbox.Publisher{"kafka": d},
			Breaker: outbox.Breaker{FirstPause: time.Hour, MaxPause: time.Hour},
		},
			outbox.ListenPublish(bad, outbox.Publication{Broker: "kafka", Destination: "bad"}),
			outbox.ListenPublish(good, outbox.Publication{Broker: "kafka", Destination: "good"}))
		require.NoError(t, err)
		outbox.LimitLeaseAge(l, time.Hour)
		return l, &sent
	}
	in := []string{`{"n": 0, "key": "k"}`, `{"n": 1, "key": "k"}`, `{"n": 2, "key": "k"}`, `{"n": 3, "key": "k"}`}
	l, sent := relay(badDestinations["refusing"])
	went := make(chan struct{}, 1)
	outbox.WatchContinued(l, went)
	drainAll(t, l)
	require.NotEmpty(t, went, "the lease continues")
	require.Equal(t, in, *sent)
	require.Equal(t, "4 1", value[string](t, pool, "SELECT count(*) || ' ' || count(retry_after) FROM outbox.parked"), "one head")

	retryNow(t, pool)
	l, sent = relay(nil)
	drainAll(t, l)
	require.Equal(t, in, *sent)
	require.Zero(t, count(t, pool, "SELECT count(*) FROM outbox.parked"))
}

// What is done already behind an event that failed is not done again when it comes ahead of its lease.
func TestPrefetchOfWhatIsDone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	putAll(t, pool, "a1", "a2", "a3", "b1", "a4", "a5", "a6", "a7")
	spec := outbox.ListenerSpec{Concurrency: 2, Retry: outbox.Retry{BaseDelay: time.Hour}}
	failing := true
	act := func(name string) error {
		if name == "a1" && failing {
			return errHandler
		}
		return nil
	}
	l, h := reading(t, pool, spec, 4, act)
	drainAll(t, l)
	require.Equal(t, []string{"b1"}, h.names())
	failing = false
	retryNow(t, pool)
	l, again := reading(t, pool, spec, 2, act) // started again, with smaller batches
	drainAll(t, l)
	require.Equal(t, []string{"a1", "a2", "a3", "a4", "a5", "a6", "a7"}, again.names())
}

// However pgx is set up for a pooler, what is read ahead is the same.
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
			newCrowd("a", "b").enqueue(t, pool, 7)
			inTx(t, pool, func(tx pgx.Tx) {
				_, err := saidTopic.Untyped().Enqueue(t.Context(), tx, said{Key: "c", N: 1}, outbox.WithHeaders(map[string]string{"of": "c"}))
				require.NoError(t, err)
			})
			l, h := reading(t, narrow, outbox.ListenerSpec{}, 3, well)
			drainAll(t, l)
			require.Equal(t, 8, h.inOrder(t))
			require.Equal(t, "c", h.got[7].Headers["of"])
			require.Equal(t, 1, leasesOf(t, pool))
		})
	}
}
