package kafka_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/kafka"
)

// inLane returns a context for calls of the holder of a shard.
func inLane(ctx context.Context, held func(context.Context) error) context.Context {
	return publish.ContextWithLane(ctx, publish.Lane{Name: "outbox/relay/0-of-4", Held: held})
}

func holds(context.Context) error { return nil }

func isFenced(cfg *kafka.Config) { cfg.TransactionalID = "relay" }

// toOne returns an event for the topic "one", which has one partition.
func toOne(key string, n int) publish.Outgoing {
	o := event(key, n)
	o.Destination = "one"
	return o
}

func (c *cluster) idsOf(topic, key string) (ids []string) {
	for _, r := range c.received(topic) {
		if string(r.Key) == key {
			ids = append(ids, idOf(r))
		}
	}
	return ids
}

func idsOf(events []publish.Outgoing) (ids []string) {
	for _, o := range events {
		ids = append(ids, o.ID.String())
	}
	return ids
}

// TestLateRecordOfAnEarlierProcess: a process loses its lease while a produce request is on its way. The next process sends
// that event and newer ones of the key. Then the request arrives. If both have the same transactional id, the cluster refuses it.
// Otherwise it is the last record of its key.
func TestLateRecordOfAnEarlierProcess(t *testing.T) {
	t.Parallel()
	for name, ids := range map[string][2]string{
		"the same transactional id": {"relay", "relay"}, "no transactional id": {}, "another transactional id": {"relay", "other"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, kfake.SeedTopics(1, "one"))
			before := c.publisher(t, func(cfg *kafka.Config) { cfg.TransactionalID = ids[0] })
			after := c.publisher(t, func(cfg *kafka.Config) { cfg.TransactionalID = ids[1] })
			ctx := inLane(t.Context(), holds)
			events := []publish.Outgoing{toOne("a", 0), toOne("a", 1), toOne("a", 2), toOne("a", 3)}
			require.Equal(t, []error{nil}, before.Publish(ctx, events[:1]))

			seen, waken, woken := make(chan struct{}), make(chan struct{}), make(chan struct{})
			held := false
			c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
				if !held { // the next request, until the events after it have been taken
					held = true
					close(seen)
					c.SleepControl(func() { <-waken })
					close(woken)
				}
				return nil, nil, false
			})
			leased, lose := context.WithCancelCause(ctx)
			late := make(chan []error, 1)
			go func() { late <- before.Publish(leased, events[1:2]) }()
			<-seen
			lose(outbox.ErrLeaseLost)
			require.ErrorIs(t, (<-late)[0], outbox.ErrLeaseLost)
			require.Equal(t, make([]error, 3), after.Publish(ctx, events[1:]))
			close(waken)
			<-woken
			for n := range 20 { // behind the late request
				require.Equal(t, []error{nil}, after.Publish(ctx, []publish.Outgoing{toOne("b", n)}))
			}

			want := idsOf(events)
			if name != "the same transactional id" {
				want = append(want, events[1].ID.String())
			}
			require.Equal(t, want, c.idsOf("one", "a"))
		})
	}
}

// TestLateProcessSendsNothing: a process that has lost its lease takes over the transactional id, because it has not noticed.
// It asks for the lease before it sends anything. The holder takes the id back and loses no time.
func TestLateProcessSendsNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "one"))
	holder, late := c.publisher(t, isFenced), c.publisher(t, isFenced)
	events := []publish.Outgoing{toOne("a", 0), toOne("a", 1), toOne("a", 2)}
	var asked atomic.Int32
	ctx := inLane(t.Context(), func(context.Context) error {
		asked.Add(1)
		return nil
	})
	require.Equal(t, []error{nil}, holder.Publish(ctx, events[:1]))
	for n := range 2 {
		err := late.Publish(inLane(t.Context(), func(context.Context) error { return outbox.ErrLeaseLost }), events[:1])[0]
		require.ErrorIs(t, err, outbox.ErrNotSent)
		require.ErrorIs(t, err, outbox.ErrLeaseLost)
		require.Equal(t, []error{nil}, holder.Publish(ctx, events[n+1:n+2]))
		require.EqualValues(t, n+2, asked.Load(), "once for each time that the holder takes the id")
	}
	require.Equal(t, idsOf(events), c.idsOf("one", "a"))
}

// TestProducersOfEarlierLanesAreFenced: a process takes the transactional ids of the listener's earlier lanes after that of its
// own, and before it asks for the lease. If it cannot, or cannot learn which they are, it sends nothing.
func TestProducersOfEarlierLanesAreFenced(t *testing.T) {
	t.Parallel()
	errDatabase := errors.New("the database is away")
	const lane, own, first, second = "outbox/relay/", "relay/outbox/relay/0-of-4/one", "relay/outbox/relay/0-of-2/one", "relay/outbox/relay/1-of-2/one"
	for name, test := range map[string]struct {
		earlier error         // of the database
		answers []*kerr.Error // of the cluster, for one of the ids
		want    func(error) bool
		asked   int
	}{
		"fenced":                        {nil, nil, func(err error) bool { return err == nil }, 1},
		"a transaction is still ending": {nil, []*kerr.Error{kerr.ConcurrentTransactions, kerr.ConcurrentTransactions}, func(err error) bool { return err == nil }, 1},
		"no rights":                     {nil, []*kerr.Error{kerr.TransactionalIDAuthorizationFailed}, outbox.IsUnavailable, 0},
		"no database":                   {errDatabase, nil, func(err error) bool { return errors.Is(err, errDatabase) && errors.Is(err, outbox.ErrNotSent) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, kfake.SeedTopics(1, "one"))
			var mu sync.Mutex
			var taken []string
			answers := test.answers
			c.ControlKey(int16(kmsg.InitProducerID), func(r kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				mu.Lock()
				defer mu.Unlock()
				req := r.(*kmsg.InitProducerIDRequest)
				if *req.TransactionalID == second && len(answers) > 0 {
					resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
					resp.ErrorCode, answers = answers[0].Code, answers[1:]
					return resp, nil, true
				}
				taken = append(taken, *req.TransactionalID)
				return nil, nil, false
			})
			asked := 0
			ctx := publish.ContextWithLane(t.Context(), publish.Lane{
				Name: lane + "0-of-4",
				Earlier: func(context.Context) ([]string, error) {
					return []string{lane + "0-of-2", lane + "1-of-2"}, test.earlier
				},
				Held: func(context.Context) error {
					mu.Lock()
					defer mu.Unlock()
					asked++
					require.Equal(t, own, taken[0])
					require.ElementsMatch(t, []string{first, second}, taken[1:])
					return nil
				},
			})
			p := c.publisher(t, isFenced)
			err := p.Publish(ctx, []publish.Outgoing{toOne("a", 0)})[0]
			require.True(t, test.want(err), "%v", err)
			require.Equal(t, test.asked, asked)
			require.Len(t, c.received("one"), test.asked)
			if err == nil { // the producer is kept
				require.Equal(t, []error{nil}, p.Publish(ctx, []publish.Outgoing{toOne("a", 1)}))
				require.Equal(t, 1, asked)
				require.Len(t, taken, 3)
			}
		})
	}
}

// TestTransactionWithARefusedRecord: a record that the cluster refuses does not keep back the others of its transaction, of its
// own partition or of others. Consumers that read what is committed get each of them once.
func TestTransactionWithARefusedRecord(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.publisher(t, isFenced)
	var events []publish.Outgoing
	var want []string
	for n := range 40 {
		o := event(string(rune('a'+n%20)), n)
		if n == 7 {
			o = large(o)
		} else if n != 27 { // behind it
			want = append(want, o.ID.String())
		}
		events = append(events, o)
	}
	for n, err := range p.Publish(inLane(t.Context(), holds), events) {
		switch n {
		case 7:
			require.True(t, outbox.IsPermanent(err), "%v", err)
			require.ErrorIs(t, err, kerr.MessageTooLarge)
		case 27:
			require.Equal(t, outbox.ErrBehind, err)
		default:
			require.NoError(t, err)
		}
	}

	var got []string
	for _, r := range c.committed(topic, func(records []*kgo.Record) bool { return len(records) >= len(want) }) {
		got = append(got, idOf(r))
	}
	require.ElementsMatch(t, want, got)
	require.Greater(t, len(c.received(topic)), len(want), "copies of aborted transactions")
}
