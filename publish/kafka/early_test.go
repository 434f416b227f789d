package kafka_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
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

	"github.com/outboxgen/outboxgen/internal/testing/campaign"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/kafka"
)

// leftover is a logger and a hook of a client. Its goroutine that sends records has given up the records of one call and
// still looks for others when the next call begins. It continues in the middle of that call's records.
type leftover struct {
	slog.Handler
	failing  atomic.Bool   // the client is giving up the records of the first call
	goOn     chan struct{} // closed to let the goroutine continue
	armed    atomic.Bool   // the second call has begun
	buffered atomic.Int32  // records of the second call
	at       int32         // the record before which the goroutine continues
	refused  chan struct{} // closed when the cluster refuses what was sent early
	failed   chan struct{} // closed when the client has failed a record of the second call
	once     sync.Once
	more     chan struct{} // has an element when the cluster has taken records after that
}

// moment is how long a test waits for something that must not happen.
const moment = 300 * time.Millisecond

func (l *leftover) Enabled(context.Context, slog.Level) bool { return true }

func (l *leftover) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "will_fail" && a.Value.Kind() == slog.KindBool && a.Value.Bool() {
			l.failing.Store(true)
		}
		return true
	})
	if l.failing.Load() && strings.Contains(r.Message, "unable to load producer ID") {
		<-l.goOn
	}
	return nil
}

func (l *leftover) OnProduceRecordBuffered(*kgo.Record) {
	if !l.armed.Load() || l.buffered.Add(1) != l.at {
		return
	}
	close(l.goOn)
	select {
	case <-l.refused:
	case <-time.After(patience):
		return
	}
	select {
	case <-l.failed:
	case <-time.After(moment):
	}
}

func (l *leftover) OnProduceRecordUnbuffered(_ *kgo.Record, err error) {
	if l.armed.Load() && err != nil {
		l.once.Do(func() {
			close(l.failed)
			select { // the client does not learn of the failure until then
			case <-l.more:
			case <-time.After(moment):
			}
		})
	}
}

// TestRefusedBeforeTheRoundIsComplete: the client sends the first records of a call early, and the cluster refuses them
// while the others are still on their way into the client. The others, which have the same key, are not sent.
func TestRefusedBeforeTheRoundIsComplete(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kfake.SeedTopics(1, "one"))
	l := &leftover{
		Handler: slog.DiscardHandler, at: 6,
		goOn: make(chan struct{}), refused: make(chan struct{}), failed: make(chan struct{}), more: make(chan struct{}, 1),
	}
	ctx, cancel := context.WithCancel(t.Context())
	p := c.publisher(t, func(cfg *kafka.Config) {
		cfg.Logger = slog.New(l)
		cfg.Options = []kgo.Opt{
			kgo.WithHooks(l), kgo.ProducerBatchCompression(kgo.NoCompression()),
			kgo.RetryBackoffFn(func(int) time.Duration {
				cancel() // the first call, which waits for a producer id
				return time.Second
			}),
		}
	})
	noID := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.CoordinatorLoadInProgress, Count: -1})
	events := make([]publish.Outgoing, 10)
	for n := range events {
		events[n] = toOne("a", n)
	}
	events[0].Entity = outbox.Entity{Type: "user", ID: "poison!"}
	require.ErrorIs(t, p.Publish(ctx, events[:1])[0], kerr.CoordinatorLoadInProgress)
	noID.Remove()

	var early atomic.Int32 // records in the first request
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		for _, b := range batchesOf(t, r.(*kmsg.ProduceRequest)) {
			if strings.Contains(string(b.Records), "poison!") {
				if early.CompareAndSwap(0, b.NumRecords) {
					close(l.refused)
				}
				return refusal(r, kerr.InvalidRecord), nil, true
			}
		}
		select {
		case l.more <- struct{}{}:
		default:
		}
		return nil, nil, false
	})
	l.armed.Store(true)
	errs := p.Publish(t.Context(), events)
	require.EqualValues(t, l.at-1, early.Load(), "sent early")
	require.Empty(t, c.idsOf("one", "a"), "written behind an event that was refused")
	require.True(t, outbox.IsPermanent(errs[0]), "%v", errs[0])
	for _, err := range errs[1:] {
		require.Equal(t, outbox.ErrBehind, err)
	}
	require.Equal(t, make([]error, 9), p.Publish(t.Context(), events[1:]))
	require.Equal(t, idsOf(events[1:]), c.idsOf("one", "a"))
}

// reluctant is a hook that delays the client at random records, so that goroutines of the client that are left over from
// one call see a part of the next.
type reluctant struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (h *reluctant) chance(of float64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rng.Float64() < of
}

func (h *reluctant) n(limit int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rng.IntN(limit)
}

func (h *reluctant) OnProduceRecordBuffered(*kgo.Record) {
	if h.chance(0.03) {
		<-time.After(time.Duration(h.n(3000)) * time.Microsecond)
	}
}

func (h *reluctant) OnProduceRecordUnbuffered(*kgo.Record, error) {
	if h.chance(0.02) {
		<-time.After(time.Duration(h.n(3000)) * time.Microsecond)
	}
}

// TestOrderUnderRandomRefusals: callers publish their events again and again until each is taken or refused permanently. The
// cluster refuses batches at random. No event is written before an earlier one of its key, unless that one is dead. Every
// second run is in transactions. In a campaign, some of the runs come to a transaction of which the cluster has taken a part of
// a partition's records and refused another part.
func TestOrderUnderRandomRefusals(t *testing.T) {
	t.Parallel()
	codes := []*kerr.Error{
		kerr.InvalidRecord, kerr.MessageTooLarge, kerr.PolicyViolation, kerr.TopicAuthorizationFailed, kerr.UnknownServerError,
		kerr.CorruptMessage, kerr.NotLeaderForPartition, kerr.RequestTimedOut, kerr.OutOfOrderSequenceNumber,
	}
	for seed := range uint64(campaign.Of(12, 400)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			h := &reluctant{rng: rand.New(rand.NewPCG(seed, 0))}
			c := newCluster(t, kfake.SeedTopics(1, "one"))
			p := c.publisher(t, func(cfg *kafka.Config) {
				cfg.BatchBytes = 4 << 10 << h.n(4)
				if seed%2 == 1 {
					cfg.TransactionalID = "relay"
				}
				cfg.Options = []kgo.Opt{kgo.WithHooks(h), kgo.ProducerBatchCompression(kgo.NoCompression())}
			})
			c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				for _, b := range batchesOf(t, r.(*kmsg.ProduceRequest)) {
					if strings.Contains(string(b.Records), "poison!") {
						return refusal(r, kerr.InvalidRecord), nil, true
					}
				}
				if h.chance(0.1) {
					return refusal(r, codes[h.n(len(codes))]), nil, true
				}
				return nil, nil, false
			})
			var dead sync.Map // by id
			events := make([][]publish.Outgoing, 3)
			var callers sync.WaitGroup
			for caller := range events {
				for n := range 400 {
					o := toOne(fmt.Sprint(caller, "/", h.n(4)), n)
					if h.chance(0.02) {
						o.Entity = outbox.Entity{Type: "user", ID: "poison!"}
					}
					events[caller] = append(events[caller], o)
				}
				callers.Go(func() {
					for left := slices.Clone(events[caller]); len(left) > 0; {
						batch := left[:min(1+h.n(120), len(left))]
						limit := patience
						if h.chance(0.2) {
							limit = time.Duration(h.n(20_000)) * time.Microsecond
						}
						ctx, cancel := context.WithTimeout(t.Context(), limit)
						var again []publish.Outgoing
						failed := make(map[string]bool) // keys
						for i, err := range p.Publish(inLane(ctx, holds), batch) {
							key := batch[i].Key
							if err == nil {
								if failed[key] {
									t.Error("published behind a failed event")
								}
								continue
							}
							if err == outbox.ErrBehind && !failed[key] {
								t.Error("behind no failed event")
							}
							failed[key] = true
							if outbox.IsPermanent(err) {
								dead.Store(batch[i].ID.String(), true)
							} else {
								again = append(again, batch[i])
							}
						}
						cancel()
						left = append(again, left[len(batch):]...)
					}
				})
			}
			callers.Wait()
			got := make(map[string][]string) // ids by key, the first copies
			seen := make(map[string]bool)
			for _, r := range c.received("one") {
				if id := idOf(r); !seen[id] {
					seen[id] = true
					got[string(r.Key)] = append(got[string(r.Key)], id)
				}
			}
			want := make(map[string][]string)
			for _, own := range events {
				for _, o := range own {
					if _, is := dead.Load(o.ID.String()); !is || seen[o.ID.String()] {
						want[o.Key] = append(want[o.Key], o.ID.String())
					}
				}
			}
			require.Equal(t, want, got)
		})
	}
}
