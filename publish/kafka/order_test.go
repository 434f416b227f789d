package kafka_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/kafka"
)

// TestOneBatchForAKey: Kafka takes a batch as a whole or not at all. The events of a key are in one batch, even in the first
// call of a publisher that does not know the topic yet.
func TestOneBatchForAKey(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var sizes []int32
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		for _, b := range batchesOf(t, r.(*kmsg.ProduceRequest)) {
			sizes = append(sizes, b.NumRecords)
		}
		return nil, nil, false
	})
	for range 3 {
		p := c.publisher(t)
		for range 2 {
			var events []publish.Outgoing
			for n := range 800 {
				events = append(events, event("hot", n))
			}
			for _, err := range p.Publish(t.Context(), events) {
				require.NoError(t, err)
			}
			require.Equal(t, []int32{800}, sizes)
			sizes = nil
		}
	}
}

// slowHook delays the client at a record that has just got a partition.
type slowHook struct{}

func (slowHook) OnProduceRecordPartitioned(*kgo.Record, int32) { <-time.After(200 * time.Millisecond) }

// TestNewTopicIsSentImmediately: the client places records a moment before it can find them.
func TestNewTopicIsSentImmediately(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.publisher(t, func(cfg *kafka.Config) {
		cfg.Options = []kgo.Opt{kgo.WithHooks(slowHook{})}
	})
	require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{event("a", 0)}))
}

// TestKeyInSeveralRounds: events that do not fit into a batch wait until the batch before them has been taken.
func TestKeyInSeveralRounds(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.publisher(t, func(cfg *kafka.Config) { cfg.BatchBytes = 4 << 10 })
	var events []publish.Outgoing
	for n := range 100 {
		events = append(events, event("hot", n))
	}
	var requests atomic.Int32
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		if requests.Add(1) < 3 {
			return nil, nil, false
		}
		c.KeepControl()
		return refusal(r, kerr.UnknownServerError), nil, true
	})
	errs := p.Publish(t.Context(), events)
	require.EqualValues(t, 3, requests.Load(), "nothing is sent after the batch that failed")
	got := c.received(topic)
	require.NotEmpty(t, got)
	require.Less(t, len(got), 100)
	for n, err := range errs {
		switch {
		case n < len(got):
			require.NoError(t, err)
			require.Equal(t, events[n].ID.String(), idOf(got[n]))
		case n == len(got):
			require.ErrorIs(t, err, kerr.UnknownServerError)
		default:
			require.Equal(t, outbox.ErrBehind, err)
		}
	}
}

// TestKeyAcrossTopics: the order of a key holds when its events go to several topics.
func TestKeyAcrossTopics(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "audit"))
	p := c.publisher(t)
	to := func(o publish.Outgoing, topic string) publish.Outgoing {
		o.Destination = topic
		return o
	}
	events := []publish.Outgoing{
		event("a", 0), to(event("a", 1), "audit"), event("a", 2), to(event("b", 3), "audit"), event("b", 4), to(event("c", 5), "audit"),
	}
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "audit", Err: kerr.UnknownServerError, Count: 1})
	errs := p.Publish(t.Context(), events)
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[3], kerr.UnknownServerError)
	require.Equal(t, outbox.ErrBehind, errs[4])
	require.ErrorIs(t, errs[5], kerr.UnknownServerError)
	require.NoError(t, errs[1], "the fault is over in the next round")
	require.NoError(t, errs[2])
	require.Len(t, c.received(topic), 2)
	require.Len(t, c.received("audit"), 1)
}

// TestRefusedInCompany: a batch that Kafka refuses because of one record is sent again without that record. The records
// behind it with its key are not sent.
func TestRefusedInCompany(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "one"))
	poison := "user/13"
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		for _, b := range batchesOf(t, r.(*kmsg.ProduceRequest)) {
			if strings.Contains(string(b.Records), poison+"!") {
				return refusal(r, kerr.InvalidRecord), nil, true
			}
		}
		return nil, nil, false
	})
	p := c.publisher(t, func(cfg *kafka.Config) {
		cfg.Options = []kgo.Opt{kgo.ProducerBatchCompression(kgo.NoCompression())}
	})
	var events []publish.Outgoing
	for n := range 64 {
		o := event([]string{"user/13", "user/14", ""}[n%3], n)
		o.Destination = "one"
		events = append(events, o)
	}
	events[30].Entity.ID = poison + "!"
	for n, err := range p.Publish(t.Context(), events) {
		switch {
		case n == 30:
			require.True(t, outbox.IsPermanent(err), "%v", err)
			require.ErrorIs(t, err, kerr.InvalidRecord)
		case n > 30 && events[n].Key == poison:
			require.Equal(t, outbox.ErrBehind, err)
		default:
			require.NoError(t, err)
		}
	}
	require.Len(t, c.received("one"), 64-12)
}

// TestLostAck: the record is written and its acknowledgement gets lost. The client sends it again with the same number, and
// the cluster takes it once.
func TestLostAck(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*cluster, *wire){
		"connection lost": func(_ *cluster, w *wire) { w.next(drop, drop) },
		"reply to another request": func(_ *cluster, w *wire) {
			w.next(foreign)
		},
		"timed out": func(c *cluster, _ *wire) {
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.RequestTimedOut, Count: 2})
		},
		"too few replicas after the append": func(c *cluster, _ *wire) {
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicasAfterAppend})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &wire{}
			c := newCluster(t, kfake.ListenFn(w.listen))
			p := c.publisher(t)
			lose(c, w)
			events := []publish.Outgoing{event("a", 0), event("b", 1), event("a", 2)}
			require.Equal(t, make([]error, 3), p.Publish(t.Context(), events))
			require.Len(t, c.received(topic), 3)
			require.Equal(t, w.asked(), w.count(), "the wire has not tampered with a reply")
		})
	}
}

// TestLateReplies: the replies of several brokers arrive in a different order.
func TestLateReplies(t *testing.T) {
	t.Parallel()
	w := &wire{}
	c := newCluster(t, kfake.ListenFn(w.listen))
	p := c.publisher(t)
	var events []publish.Outgoing
	for n := range 60 {
		events = append(events, event(string(rune('a'+n%20)), n))
	}
	for range 5 {
		w.next(late, pass, late, pass)
		for _, err := range p.Publish(t.Context(), events) {
			require.NoError(t, err)
		}
	}
	require.Len(t, c.received(topic), 300)
	require.Positive(t, w.count())
}

// TestGivenUpIsNotSent: after Publish has returned, no failed event is sent any more, although the client would have tried
// again. Later events reach the cluster in order.
func TestGivenUpIsNotSent(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]*kerr.Error{
		"no leader":           kerr.NotLeaderForPartition,
		"too few replicas":    kerr.NotEnoughReplicas,
		"coordinator loading": kerr.CoordinatorLoadInProgress,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			p := c.publisher(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			tries := 0
			h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: fault, Count: -1, When: func(kmsg.Request) bool {
				if tries++; tries == 2 { // the client has tried again by itself; this try is refused, too
					cancel()
				}
				return true
			}})
			first, second := event("a", 0), event("a", 1)
			errs := p.Publish(ctx, []publish.Outgoing{first, second})
			require.Error(t, errs[0])
			require.Equal(t, outbox.ErrBehind, errs[1])
			h.Remove()
			require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{event("b", 2)}))
			require.Len(t, c.received(topic), 1, "a failed event was sent later")

			require.Equal(t, make([]error, 2), p.Publish(t.Context(), []publish.Outgoing{first, second}))
			var of []string
			for _, r := range c.received(topic) {
				if string(r.Key) == "a" {
					of = append(of, idOf(r))
				}
			}
			require.Equal(t, []string{first.ID.String(), second.ID.String()}, of)
		})
	}
}

// TestInDoubtIsFenced: a record that may be in flight when Publish gives it up is refused by the cluster after its successor
// has been written, so that it cannot come after it.
func TestInDoubtIsFenced(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.publisher(t, func(cfg *kafka.Config) { cfg.Concurrency = 1 })
	first, second := event("a", 0), event("a", 1)
	require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{event("a", -1)}))

	seen, waken := make(chan struct{}), make(chan struct{})
	held := false
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		if !held { // until the second one has been taken
			held = true
			close(seen)
			c.SleepControl(func() { <-waken })
		}
		return nil, nil, false
	})
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan []error, 1)
	go func() { result <- p.Publish(ctx, []publish.Outgoing{first}) }()
	<-seen
	cancel()
	require.ErrorIs(t, (<-result)[0], context.Canceled)
	require.Equal(t, make([]error, 2), p.Publish(t.Context(), []publish.Outgoing{first, second}))
	close(waken)
	require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{event("a", 2)}))

	got := c.received(topic)
	require.Equal(t, []string{first.ID.String(), second.ID.String()}, []string{idOf(got[1]), idOf(got[2])})
	require.Len(t, got, 4, "the record in doubt was written late")
}

// TestDownAndBack: when a cluster is back after an outage, it gets no event that was handed back.
func TestDownAndBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.publisher(t, func(cfg *kafka.Config) { cfg.Timeout = 5 * time.Second })
	require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{event("a", 0)}))
	c.Close()
	first, second := event("a", 1), event("a", 2)
	errs := p.Publish(t.Context(), []publish.Outgoing{first, second, event("", 3)})
	require.True(t, outbox.IsBrokerUnavailable(errs[0]), "%v", errs[0])
	require.ErrorContains(t, errs[0], "connection refused")
	require.Equal(t, outbox.ErrBehind, errs[1])
	require.True(t, outbox.IsUnavailable(errs[2]), "%v", errs[2])

	c.start()
	p.Close()
	require.Len(t, c.received(topic), 1)
	p = c.publisher(t)
	require.Equal(t, make([]error, 2), p.Publish(t.Context(), []publish.Outgoing{first, second}))
	require.Len(t, c.received(topic), 3)
}

// refusal answers every partition of a produce request with an error.
func refusal(r kmsg.Request, e *kerr.Error) kmsg.Response {
	request := r.(*kmsg.ProduceRequest)
	response := request.ResponseKind().(*kmsg.ProduceResponse)
	for _, rt := range request.Topics {
		t := kmsg.NewProduceResponseTopic()
		t.Topic, t.TopicID = rt.Topic, rt.TopicID
		for _, rp := range rt.Partitions {
			p := kmsg.NewProduceResponseTopicPartition()
			p.Partition, p.ErrorCode = rp.Partition, e.Code
			t.Partitions = append(t.Partitions, p)
		}
		response.Topics = append(response.Topics, t)
	}
	return response
}

// TestLateDuplicateIsNeverLast: with the default concurrency, the key of a record in doubt stays with its producer, so that
// the cluster refuses the record when it comes late. On a compacted topic the late record would be the state that stays.
func TestLateDuplicateIsNeverLast(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "one"))
	p := c.publisher(t, func(cfg *kafka.Config) { cfg.Timeout = time.Minute })
	to := func(key string, n int) publish.Outgoing {
		o := event(key, n)
		o.Destination = "one"
		return o
	}
	events := []publish.Outgoing{to("a", 0), to("a", 1), to("a", 2), to("a", 3)}
	require.Equal(t, []error{nil}, p.Publish(t.Context(), events[:1]))

	// The next two requests wait until they are woken: the one of the record in doubt, and another one of the same producer,
	// which keeps it busy.
	wakens := []chan struct{}{make(chan struct{}), make(chan struct{})}
	seen := make(chan struct{}, len(wakens))
	held := 0
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if held < len(wakens) {
			waken := wakens[held]
			held++
			seen <- struct{}{}
			c.SleepControl(func() { <-waken })
		}
		return nil, nil, false
	})
	ctx, cancel := context.WithCancel(t.Context())
	doubtful := make(chan []error, 1)
	go func() { doubtful <- p.Publish(ctx, events[1:2]) }()
	<-seen
	cancel()
	require.ErrorIs(t, (<-doubtful)[0], context.Canceled)
	busy := make(chan []error, 1)
	go func() { busy <- p.Publish(context.WithoutCancel(t.Context()), []publish.Outgoing{to("b", 0)}) }()
	<-seen
	again := make(chan []error, 1)
	go func() { again <- p.Publish(context.WithoutCancel(t.Context()), events[1:]) }()
	var errs []error
	late := func() {
		close(wakens[0])
		for n := range 20 { // behind the late record, through a free producer
			require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{to("c", n)}))
		}
	}
	select {
	case errs = <-again: // through another producer, before the busy one could make the cluster refuse the late record
		late()
		close(wakens[1])
	case <-time.After(300 * time.Millisecond):
		close(wakens[1])
		errs = <-again
		late()
	}
	require.Equal(t, make([]error, 3), errs)
	require.Equal(t, []error{nil}, <-busy)

	var of []string
	for _, r := range c.received("one") {
		if string(r.Key) == "a" {
			of = append(of, idOf(r))
		}
	}
	require.Equal(t, []string{events[0].ID.String(), events[1].ID.String(), events[2].ID.String(), events[3].ID.String()}, of)
}

// TestKeysLeaveTheProducerThatWroteThem: a key in doubt is bound until its producer has written to the partition again. A call
// with keys of several producers sends each key through its own producer.
func TestKeysLeaveTheProducerThatWroteThem(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.publisher(t)
	h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: -1})
	var events []publish.Outgoing
	for n := range 40 {
		events = append(events, event(string(rune('a'+n%20)), n))
	}
	var calls sync.WaitGroup
	for part := range 4 { // one call per key, concurrently through several producers
		var own []publish.Outgoing
		for _, o := range events {
			if int(o.Key[0])%4 == part {
				own = append(own, o)
			}
		}
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			for _, err := range p.Publish(ctx, own) {
				if err == nil {
					t.Error("published while there are too few replicas")
				}
			}
		})
	}
	calls.Wait()
	h.Remove()
	require.Equal(t, make([]error, len(events)), p.Publish(t.Context(), events))
	require.Equal(t, make([]error, len(events)), p.Publish(t.Context(), events))
	require.Zero(t, p.Bound())
	last := make(map[string]string)
	for _, r := range c.received(topic) {
		last[string(r.Key)] = idOf(r)
	}
	for _, o := range events[20:] {
		require.Equal(t, o.ID.String(), last[o.Key])
	}
}

// TestEncoderEndsItsGoroutine: in a call with keys of several producers, an encoder that ends its goroutine fails the events
// of that producer, and none of them counts as sent. The others are sent.
func TestEncoderEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var ends atomic.Bool
	p := c.publisher(t, func(cfg *kafka.Config) {
		cfg.Encoder = func(o publish.Outgoing) (publish.Message, error) {
			if ends.Load() && o.Key == "a" {
				runtime.Goexit()
			}
			return publish.CloudEvents("", publish.Binary)(o)
		}
	})
	h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: -1})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	require.Error(t, p.Publish(ctx, []publish.Outgoing{event("a", 0)})[0])
	h.Remove()
	require.Positive(t, p.Bound(), "the key must be bound to its producer")
	ends.Store(true)
	errs := p.Publish(t.Context(), []publish.Outgoing{event("b", 0), event("a", 0), event("a", 1)})
	require.NoError(t, errs[0])
	require.ErrorContains(t, errs[1], "publisher called runtime.Goexit")
	require.ErrorContains(t, errs[2], "publisher called runtime.Goexit")
	ends.Store(false)
	require.Equal(t, make([]error, 2), p.Publish(t.Context(), []publish.Outgoing{event("a", 0), event("a", 1)}))
}

// TestRoundsInQuickSuccession: a call that begins when the one before has just ended succeeds. The client may still be looking
// for records to send, and may send some before all of them are placed.
func TestRoundsInQuickSuccession(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.publisher(t)
	events := make([]publish.Outgoing, 200)
	for n := range events {
		events[n] = event(string(rune('a'+n%20)), n)
	}
	for n := range 500 {
		if errs := p.Publish(t.Context(), events); !slices.Equal(errs, make([]error, len(events))) {
			require.NoError(t, errors.Join(errs...), n)
		}
	}
}
