package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// Bounds of Config.BatchBytes. The client's own limit stays above the largest, so that it never splits what belongs
	// into one batch, and never refuses what the cluster may take.
	minBatchBytes    = 1 << 10
	maxBatchBytes    = 32 << 20
	clientBatchBytes = 64 << 20
	// maxRound is the most records that are sent at once.
	maxRound = 10_000
	// grace is how long the client may take to give records up once their context has ended.
	grace = time.Second
)

// client is one producer, used by one call of Publish at a time. That, and flushing by hand, is what order rests on: all
// records of a round are in the client's buffers before the first is sent, so that a partition has one batch, which
// Kafka takes whole or not at all, and none is added to a partition after a failure in it.
type client struct {
	kgo    *kgo.Client
	turn   chan struct{}            // has one while a call uses the client
	unfit  bool                     // not to be used again after this call, but for the keys that are bound to it
	broken bool                     // as unfit, and known to the pool
	closed bool                     // cannot be used at all
	doubts map[home]map[string]bool // keys of records that may be on their way there; guarded by the pool

	round     atomic.Pointer[round]
	connected atomic.Bool           // to a broker, now or earlier
	trouble   atomic.Pointer[error] // the last one with a connection
	known     atomic.Bool           // a broker has answered something, now or earlier
	answered  atomic.Bool           // a broker has answered something in this round
}

func newClient(cfg Config) (*client, error) {
	c := &client{turn: make(chan struct{}, 1)}
	opts := []kgo.Opt{
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.ClientID("outboxgen"),
		kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.RetryBackoffFn(backoff),
		kgo.DisableClientMetrics(),
		kgo.WithLogger(logger{cfg.Logger}),
		kgo.WithHooks(c), // beside those of the options
	}
	opts = append(opts, cfg.Options...)
	opts = append(opts,
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ManualFlushing(),
		kgo.ProducerLinger(0),
		kgo.MaxBufferedRecords(maxRound),
		kgo.MaxBufferedBytes(0), // a round is never cut in the middle
		kgo.RecordDeliveryTimeout(0),
		kgo.RecordPartitioner(kgo.UniformBytesPartitioner(64<<10, true, true, nil)), // the client's own: one partition for a key
		kgo.ProducerBatchMaxBytes(clientBatchBytes),
		kgo.ProduceRequestTimeout(cfg.Timeout),
		kgo.RecordRetries(10),
		kgo.UnknownTopicRetries(4),
		// A record that may have been written can be given up: the client then raises its epoch, by which the cluster
		// refuses what is still on its way once the partition has seen the new one.
		kgo.AllowIdempotentProduceCancellation(),
	)
	var err error
	if c.kgo, err = kgo.NewClient(opts...); err != nil {
		return nil, err
	}
	for _, refused := range []struct {
		option any
		why    string
	}{
		{kgo.DisableIdempotentWrite, "kgo.DisableIdempotentWrite gives up the order of events"},
		{kgo.DefaultProduceTopicAlways, "kgo.DefaultProduceTopicAlways sends all events to one topic"},
	} {
		if set, _ := c.kgo.OptValue(refused.option).(bool); set {
			c.kgo.Close()
			return nil, fmt.Errorf("field Options: %s: remove it", refused.why)
		}
	}
	return c, nil
}

// backoff of the client between tries: equal jitter from 100 ms to 1 s.
func backoff(fails int) time.Duration {
	d := min(100*time.Millisecond<<min(max(fails-1, 0), 4), time.Second)
	return d/2 + rand.N(d/2)
}

func (c *client) close() {
	if !c.closed {
		c.closed, c.unfit = true, true
		c.kgo.Close()
	}
}

// produce sends records and returns an error for each, once nothing of them is left in the client: what has failed will
// not be sent any more. A record is unsent if nothing of it has gone to a broker: it had no partition to go to, or the
// client no connection.
func (c *client) produce(ctx context.Context, records []*kgo.Record) (errs []error, unsent []bool) {
	r := newRound(records)
	c.round.Store(r)
	defer c.round.Store(nil)
	c.trouble.Store(nil)
	c.answered.Store(false)
	// The client gives up on a cancelled context, but not everywhere on one past its deadline.
	sending, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()

	for i, record := range records {
		c.kgo.Produce(sending, record, func(_ *kgo.Record, err error) { r.finish(i, err) })
	}
	c.await(ctx, r.placed)
	if r.torn() {
		c.close()
	}
	var flush sync.WaitGroup
	flush.Go(func() { _ = c.kgo.Flush(context.WithoutCancel(ctx)) }) // ends when all records have
	flush.Go(func() { c.prod(r) })
	c.await(ctx, r.finished)
	flush.Wait()
	unsent = make([]bool, len(records))
	for i := range unsent {
		unsent[i] = !r.has[i] || !c.connected.Load()
	}
	return r.errs, unsent
}

// prod has the client look for records to send until it has no more. It tells that a record is placed a moment before
// Flush can find its partition, when the topic is one that it has just learnt of: a record in between would wait for ever.
func (c *client) prod(r *round) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		timer := time.NewTimer(wait)
		select {
		case <-r.finished:
			timer.Stop()
			return
		case <-timer.C:
			_ = c.kgo.Flush(ended) // looks, and does not wait
		}
	}
}

// await waits for done, and sees to it that it comes soon after the end of ctx.
func (c *client) await(ctx context.Context, done <-chan struct{}) {
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	patience := time.NewTimer(grace)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C:
		c.close() // which fails all that is left
		<-done
	}
}

// OnProduceRecordPartitioned implements kgo.HookProduceRecordPartitioned.
func (c *client) OnProduceRecordPartitioned(record *kgo.Record, _ int32) {
	if r := c.round.Load(); r != nil {
		r.place(record)
	}
}

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (c *client) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err == nil {
		c.connected.Store(true)
	} else if !errors.Is(err, context.Canceled) {
		c.trouble.Store(&err)
	}
}

// OnBrokerRead implements kgo.HookBrokerRead. What a broker says before it lets a client in does not count.
func (c *client) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	switch kmsg.Key(key) {
	case kmsg.ApiVersions, kmsg.SASLHandshake, kmsg.SASLAuthenticate:
		return
	}
	if err == nil {
		c.known.Store(true)
		c.answered.Store(true)
	}
}

// away reports whether it was the whole cluster that could not be reached: none of its brokers has said anything, and
// that is not because a single one keeps its answer to itself.
func (c *client) away() bool {
	return !c.answered.Load() && (c.trouble.Load() != nil || !c.known.Load())
}

// round is what becomes of the records that are sent together.
type round struct {
	placed   chan struct{} // closed when each record has a partition, or has failed
	finished chan struct{} // closed when each record has its result

	mu       sync.Mutex
	records  []*kgo.Record
	index    map[*kgo.Record]int
	has      []bool // a partition
	done     []bool
	errs     []error
	homeless int // neither has nor done
	open     int // not done
}

func newRound(records []*kgo.Record) *round {
	r := &round{
		placed: make(chan struct{}), finished: make(chan struct{}),
		records: records, index: make(map[*kgo.Record]int, len(records)),
		has: make([]bool, len(records)), done: make([]bool, len(records)), errs: make([]error, len(records)),
		homeless: len(records), open: len(records),
	}
	for i, record := range records {
		r.index[record] = i
	}
	return r
}

func (r *round) place(record *kgo.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i, mine := r.index[record]; mine && !r.has[i] && !r.done[i] {
		r.has[i] = true
		r.settle()
	}
}

func (r *round) finish(i int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs[i] = err
	r.done[i] = true
	if !r.has[i] {
		r.settle()
	}
	if r.open--; r.open == 0 {
		close(r.finished)
	}
}

func (r *round) settle() {
	if r.homeless--; r.homeless == 0 {
		close(r.placed)
	}
}

// torn reports whether a topic has failed before anything was sent, but not for all its records: what is left of it
// must not be sent, since it may be behind what has failed.
func (r *round) torn() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	failed := make(map[string]bool)
	for i, record := range r.records {
		failed[record.Topic] = failed[record.Topic] || r.done[i]
	}
	for i, record := range r.records {
		if !r.done[i] && failed[record.Topic] {
			return true
		}
	}
	return false
}

// logger hands what the client says to slog, from warnings up.
type logger struct{ to *slog.Logger }

func (logger) Level() kgo.LogLevel { return kgo.LogLevelWarn }

func (l logger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	to := slog.LevelWarn
	if level == kgo.LogLevelError {
		to = slog.LevelError
	}
	l.to.Log(context.Background(), to, "kafka client: "+msg, keyvals...)
}
