package kafka_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/kafka"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// moment is how long a test waits for something that must not happen.
const moment = 500 * time.Millisecond

// hold holds the next request of a kind until answer is called. seen is closed when the request is there.
func (c *cluster) hold(key kmsg.Key) (seen <-chan struct{}, answer func()) {
	held, waken := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	c.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
		if first.CompareAndSwap(false, true) {
			close(held)
			c.SleepControl(func() { <-waken })
		}
		return nil, nil, false
	})
	return held, func() { close(waken) }
}

// rebalance has the members of the group join it again.
func (c *cluster) rebalance() {
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Err: kerr.RebalanceInProgress, TopLevel: true})
}

// expel has a member of the group lose its partitions and join the group as a new one.
func (c *cluster) expel() {
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Err: kerr.UnknownMemberID, TopLevel: true})
}

// rarely is a configuration whose offsets are committed only when partitions are given up.
func (c *cluster) rarely() kafka.Config {
	cfg := c.config()
	cfg.Options = append(cfg.Options, kgo.AutoCommitInterval(time.Hour), kgo.SessionTimeout(30*time.Second), kgo.RebalanceTimeout(time.Minute))
	return cfg
}

// TestStopCommitsOffsets: Run commits the offsets of what is settled before it returns, also when it is stopped while the group is
// rebalanced.
func TestStopCommitsOffsets(t *testing.T) {
	t.Parallel()
	for _, rebalance := range []bool{false, true} {
		t.Run(fmt.Sprintf("rebalance=%t", rebalance), func(t *testing.T) {
			t.Parallel()
			pool, c := database(t), newCluster(t, 1)
			c.produce(records(20, 5)...)
			r := receiver(t, pool, &effects{}, c.rarely())
			stop := start(t, r)
			pgtest.Settles(t, pool, 100, "SELECT count(*) FROM effects")
			if rebalance {
				joins, answer := c.hold(kmsg.JoinGroup)
				c.rebalance()
				pgtest.Receive(t, joins, "a request to join")
				time.AfterFunc(moment, answer) // the other members come when they notice the rebalance
			}
			require.NoError(t, stop())
			lags, err := r.Lag(t.Context())
			require.NoError(t, err)
			for _, l := range lags {
				require.Zero(t, l.Records, "%+v", l)
			}
		})
	}
}

// TestRevokeWaitsForTransactions: another member of the group gets a partition only when the transactions of the one before have
// ended.
func TestRevokeWaitsForTransactions(t *testing.T) {
	t.Parallel()
	pool, c := database(t), newCluster(t, 1, kfake.SeedTopics(2, "pair"))
	const keys, each = 8, 10
	list := records(keys, each)
	for _, r := range list {
		r.Topic = "pair"
	}
	c.produce(list...)
	partitions := make(map[string]int32)
	for _, r := range list {
		partitions[string(r.Key)] = r.Partition
	}
	syncs := make(chan struct{}, 100) // each of them tells a member its partitions
	c.ControlKey(int16(kmsg.SyncGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		syncs <- struct{}{}
		return nil, nil, false
	})
	slow := &effects{}
	in, finish := make(chan string, keys*each), make(chan struct{})
	slow.set(func(_ context.Context, _ pgx.Tx, d consume.Delivery[counted]) error {
		in <- d.Payload.Key
		<-finish
		return nil
	})
	cfg := c.rarely()
	cfg.Topics, cfg.Receive.BatchSize, cfg.Receive.Concurrency = []string{"pair"}, 1, keys
	stopFirst := start(t, receiver(t, pool, slow, cfg))
	for busy := make(map[int32]bool); len(busy) < 2; {
		busy[partitions[pgtest.Receive(t, in, "an effect of each partition")]] = true
	}
	began := make(chan struct{}, keys*each)
	cfg.Receive.Begin = func(context.Context, pgx.Tx) error {
		began <- struct{}{}
		return nil
	}
	stopSecond := start(t, receiver(t, pool, &effects{}, cfg))
	for range 3 {
		pgtest.Receive(t, syncs, "the first member alone, and then both")
	}
	select {
	case <-began:
		t.Error("two members of the group have a partition")
	case <-time.After(moment):
	}
	close(finish)
	pgtest.Receive(t, began, "the first transaction of the second member")
	pgtest.Settles(t, pool, keys*each, "SELECT count(*) FROM effects")
	require.NoError(t, stopSecond())
	require.NoError(t, stopFirst())
	requireCounted(t, pool, keys, each)
}

// TestAssignmentDuringTheStop: a process gets partitions while it stops and waits for a transaction. It does not begin with them,
// and the next Run does.
func TestAssignmentDuringTheStop(t *testing.T) {
	t.Parallel()
	pool, c := database(t), newCluster(t, 1)
	e := &effects{}
	in, finish := make(chan struct{}, 1), make(chan struct{})
	e.set(func(context.Context, pgx.Tx, consume.Delivery[counted]) error {
		in <- struct{}{}
		<-finish
		return nil
	})
	c.produce(record("a", 1))
	r := receiver(t, pool, e, c.rarely())
	stop := start(t, r)
	pgtest.Receive(t, in, "the effect")
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	fetches, answer := c.hold(kmsg.OffsetFetch) // after the assignment
	c.expel()
	pgtest.Receive(t, fetches, "a request for the offsets of the new assignment")
	answer()
	close(finish)
	require.NoError(t, pgtest.Receive(t, stopped, "the end of Run"))
	e.set(nil)
	stop = start(t, r)
	for n := 2; n <= 4; n++ {
		c.produce(record("a", n))
	}
	pgtest.Settles(t, pool, 4, "SELECT count(*) FROM effects")
	require.NoError(t, stop())
	requireCounted(t, pool, 1, 4)
}

// handing is a hook that waits before the client hands out a record.
type handing struct{ before func(*kgo.Record) }

func (h handing) OnFetchRecordUnbuffered(r *kgo.Record, polled bool) {
	if polled {
		h.before(r)
	}
}

// TestPolledRecordsOfALostPartition: a process loses a partition while its client is handing out records of it, and gets it
// again. These records do not get in front of the earlier ones, which are read again.
func TestPolledRecordsOfALostPartition(t *testing.T) {
	t.Parallel()
	pool, c := database(t), newCluster(t, 1, kfake.SeedTopics(1, "single"))
	put := func(n int) {
		r := record("a", n)
		r.Topic = "single"
		c.produce(r)
	}
	e := &effects{}
	in, finish := make(chan struct{}), make(chan struct{})
	var calls atomic.Int64
	e.set(func(ctx context.Context, _ pgx.Tx, _ consume.Delivery[counted]) error {
		if calls.Add(1) == 1 {
			close(in)
			select {
			case <-finish: // until the partition is lost
			case <-ctx.Done():
			}
			return errTransient
		}
		return nil
	})
	var assigned atomic.Int64
	again := make(chan struct{})
	c.ControlKey(int16(kmsg.OffsetFetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if assigned.Add(1) == 2 {
			close(again)
		}
		return nil, nil, false
	})
	cfg := c.rarely()
	cfg.Topics = []string{"single"}
	cfg.Options = append(cfg.Options, kgo.WithHooks(handing{func(r *kgo.Record) {
		if r.Offset != 1 || assigned.Load() > 1 {
			return
		}
		c.expel()
		time.AfterFunc(moment, func() { close(finish) })
		select {
		case <-again:
		case <-time.After(3 * moment):
		}
	}}))
	put(1)
	stop := start(t, receiver(t, pool, e, cfg))
	pgtest.Receive(t, in, "the first effect")
	put(2)
	pgtest.Settles(t, pool, 2, "SELECT count(*) FROM effects")
	require.NoError(t, stop())
	requireCounted(t, pool, 1, 2)
}
