package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/outboxgen/outboxgen/internal/broker/lograte"
)

const (
	// Bounds of Config.BatchBytes. The client's own limit is above the largest value, so that the client never splits a
	// batch and never refuses a record that the cluster may take.
	minBatchBytes    = 1 << 10
	maxBatchBytes    = 32 << 20
	clientBatchBytes = 64 << 20
	// maxRound is the maximum number of records in a round.
	maxRound = 10_000
	// grace is how long the client may take to give up records after their context has ended.
	grace = time.Second
)

// client is one producer, used by one call of Publish at a time. Order depends on that, on manual flushing and on
// waiting for answers. All records of a round are in the client's buffers before the first is sent. So a partition gets
// one batch, which Kafka takes as a whole or not at all.
//
// There is one exception. A goroutine of the client that was sending the round before may still be looking for records,
// and send those of this round that it finds. Then a partition gets several batches. When Kafka refuses one of them,
// the client fails what it has for the partition, and Kafka refuses what is in flight behind it by its sequence number.
// But a record that is added to the partition after that failure would be sent. So OnBrokerRead keeps the answer to a
// produce request from the client until all records of the round are in the buffers.
type client struct {
	kgo           *kgo.Client
	turn          chan struct{} // has one element while a call uses the client
	unfit         bool          // must not be used after this call, except for the keys that are bound to it
	broken        bool          // is unfit, and the pool knows it
	closed        bool          // cannot be used at all
	transactional bool
	access        string                     // the mechanisms of SASL, for errors
	doubts        map[target]map[string]bool // keys of records that may be in flight to a target; guarded by the pool

	round    atomic.Pointer[round]
	open     atomic.Int32          // number of connections to brokers
	reached  atomic.Bool           // has had a connection in this round
	connErr  atomic.Pointer[error] // the last error of a connection
	known    atomic.Bool           // a broker has answered
	answered atomic.Bool           // a broker has answered in this round
}

// making is held while a client is made: kgo.NewClient writes into the value of kgo.ProducerBatchCompression, which
// clients share.
var making sync.Mutex

func makeClient(opts []kgo.Opt) (*kgo.Client, error) {
	making.Lock()
	defer making.Unlock()
	return kgo.NewClient(opts...)
}

// newClient returns a producer. A transactional id makes it that of a lane.
func newClient(cfg Config, log *lograte.Limit, transactionalID string) (*client, error) {
	c := &client{turn: make(chan struct{}, 1)}
	opts := []kgo.Opt{
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.ClientID("outboxgen"),
		kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.RetryBackoffFn(backoff),
		kgo.DisableClientMetrics(),
		kgo.ProducerBatchCompression(kgo.NoCompression()), // which every consumer reads: Config.Options
		kgo.WithLogger(logger{log}),
		kgo.WithHooks(c), // in addition to those of the options
	}
	opts = append(opts, cfg.Options...)
	opts = append(opts,
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ManualFlushing(),
		kgo.ProducerLinger(0),
		kgo.MaxBufferedRecords(maxRound),
		kgo.MaxBufferedBytes(0), // no limit, so that a round is never cut
		kgo.RecordDeliveryTimeout(0),
		// the client's default: one partition per key
		kgo.RecordPartitioner(kgo.UniformBytesPartitioner(64<<10, true, true, nil)),
		kgo.ProducerBatchMaxBytes(clientBatchBytes),
		kgo.ProduceRequestTimeout(cfg.Timeout),
		kgo.RecordRetries(10),
		kgo.UnknownTopicRetries(4),
	)
	if c.transactional = transactionalID != ""; c.transactional {
		opts = append(opts, transactional(transactionalID, cfg.Timeout)...)
	} else {
		// A record that may have been written can be given up. The client then raises its epoch, and after the partition has
		// seen the new epoch the cluster refuses records that are still in flight.
		opts = append(opts, kgo.AllowIdempotentProduceCancellation())
	}
	var err error
	if c.kgo, err = makeClient(opts); err != nil {
		return nil, err
	}
	c.access = access(c.kgo)
	for _, refused := range []struct {
		option any
		why    string
	}{
		{kgo.DisableIdempotentWrite, "kgo.DisableIdempotentWrite breaks the order of events"},
		{kgo.DefaultProduceTopicAlways, "kgo.DefaultProduceTopicAlways sends all events to one topic"},
	} {
		if set, _ := c.kgo.OptValue(refused.option).(bool); set {
			c.kgo.Close()
			return nil, fmt.Errorf("field Options: %s: remove it", refused.why)
		}
	}
	return c, nil
}

// backoff is the client's pause between attempts: from 100 ms to 1 s, of which half is random (equal jitter).
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

// produce sends records and returns an error for each. It returns when no record is left in the client, so that a
// failed record is not sent any more. A record is unsent if nothing of it went to a broker, because the record had no
// partition or the client had no connection in the meantime.
func (c *client) produce(ctx context.Context, records []kgo.Record) (errs []error, unsent []bool) {
	// The client always notices a cancelled context, but in some places not a context past its deadline.
	sending, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	r := newRound(sending, records)
	c.round.Store(r)
	defer c.round.Store(nil)
	c.connErr.Store(nil)
	c.answered.Store(false)
	c.reached.Store(false) // in this order: a connection that opens now is seen by one of the two
	if c.open.Load() > 0 {
		c.reached.Store(true)
	}

	if c.transactional {
		if err := c.kgo.BeginTransaction(); err != nil {
			for i := range records {
				r.finish(&records[i], err)
			}
			return r.errs, make([]bool, len(records))
		}
	}
	for i := range records {
		c.kgo.Produce(&r.places[i], &records[i], r.finish)
	}
	c.await(ctx, r.placed)
	if r.partlyFailed() {
		c.close()
	}
	var flush sync.WaitGroup
	flush.Go(func() { _ = c.kgo.Flush(context.WithoutCancel(ctx)) }) // returns when all records are done
	flush.Go(func() { c.flushUntilDone(r) })
	c.await(ctx, r.finished)
	flush.Wait()
	unsent = make([]bool, len(records))
	reached := c.reached.Load()
	for i := range unsent {
		unsent[i] = !r.has[i] || !reached
	}
	return r.errs, unsent
}

// flushUntilDone makes the client look for records to send until it has no more. If the client has just learnt of a
// topic, it reports a record as placed a moment before Flush can find the record's partition. With only one Flush, such
// a record would wait for ever.
func (c *client) flushUntilDone(r *round) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		timer := time.NewTimer(wait)
		select {
		case <-r.finished:
			timer.Stop()
			return
		case <-timer.C:
			_ = c.kgo.Flush(ended) // looks and does not wait
		}
	}
}

// await waits for done. It closes the client if done does not come within grace after the end of ctx.
func (c *client) await(ctx context.Context, done <-chan struct{}) {
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		c.close() // fails all records that are left
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
func (c *client) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err == nil {
		c.open.Add(1)
		c.reached.Store(true)
	} else if !errors.Is(err, context.Canceled) {
		err = fmt.Errorf("broker %s, %s: %w", net.JoinHostPort(meta.Host, strconv.Itoa(int(meta.Port))), c.access, err)
		c.connErr.Store(&err)
	}
}

// access says with which mechanisms of SASL a client connects.
func access(client *kgo.Client) string {
	mechanisms, _ := client.OptValue(kgo.SASL).([]sasl.Mechanism)
	if len(mechanisms) == 0 {
		return "without SASL"
	}
	names := make([]string, len(mechanisms))
	for i, m := range mechanisms {
		names[i] = m.Name()
	}
	return "SASL " + strings.Join(names, ", ")
}

// explain returns the last error of a connection, which names the broker, if err is no answer or was refused there.
func (c *client) explain(err error) error {
	last := c.connErr.Load()
	if last == nil {
		return err
	}
	if err == errNoAnswer {
		return fmt.Errorf("%w: %w", err, *last)
	}
	if code, is := errors.AsType[*kerr.Error](err); is && errors.Is(*last, code) {
		return *last
	}
	return err
}

// OnBrokerDisconnect implements kgo.HookBrokerDisconnect. Nothing is written to the connection from now on.
func (c *client) OnBrokerDisconnect(kgo.BrokerMetadata, net.Conn) { c.open.Add(-1) }

// OnBrokerRead implements kgo.HookBrokerRead. The client handles an answer after OnBrokerRead has returned. Answers
// from before the client is authenticated do not count.
func (c *client) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	switch kmsg.Key(key) {
	case kmsg.ApiVersions, kmsg.SASLHandshake, kmsg.SASLAuthenticate:
		return
	}
	if err == nil {
		c.known.Store(true)
		c.answered.Store(true)
	}
	if r := c.round.Load(); r != nil && kmsg.Key(key) == kmsg.Produce {
		<-r.placed // see client; placing does not wait for answers on this connection, which is only for produce requests
	}
}

// away reports whether the whole cluster could not be reached: no broker has answered in this round, and that is not
// just one silent broker.
func (c *client) away() bool {
	return !c.answered.Load() && (c.connErr.Load() != nil || !c.known.Load())
}

// round has the results of the records that are sent together.
type round struct {
	placed   chan struct{} // closed when each record has a partition, or has failed
	finished chan struct{} // closed when each record has its result
	records  []kgo.Record
	places   []place

	mu       sync.Mutex
	has      []bool // has a partition
	done     []bool
	errs     []error
	unplaced int // number of records that are neither has nor done
	open     int // number of records that are not done
}

// place is the context of a record. It says which record of the round it is.
type place struct {
	context.Context
	at int
}

type placeKey struct{}

// Value implements context.Context.
func (p *place) Value(key any) any {
	if key == (placeKey{}) {
		return p
	}
	return p.Context.Value(key)
}

func newRound(sending context.Context, records []kgo.Record) *round {
	r := &round{
		placed: make(chan struct{}), finished: make(chan struct{}),
		records: records, places: make([]place, len(records)),
		has: make([]bool, len(records)), done: make([]bool, len(records)), errs: make([]error, len(records)),
		unplaced: len(records), open: len(records),
	}
	for i := range r.places {
		r.places[i] = place{Context: sending, at: i}
	}
	return r
}

// find returns which record of the round record is, or -1. Hooks of the options may have put another context around
// that of the record, or in its place.
func (r *round) find(record *kgo.Record) int {
	p, ok := record.Context.(*place)
	if !ok && record.Context != nil {
		p, ok = record.Context.Value(placeKey{}).(*place)
	}
	if ok && p.at < len(r.records) && &r.records[p.at] == record {
		return p.at
	}
	for i := range r.records {
		if &r.records[i] == record {
			return i
		}
	}
	return -1
}

func (r *round) place(record *kgo.Record) {
	i := r.find(record)
	if i < 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.has[i] && !r.done[i] {
		r.has[i] = true
		r.settle()
	}
}

// finish is the promise of the records.
func (r *round) finish(record *kgo.Record, err error) {
	i := r.find(record)
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
	if r.unplaced--; r.unplaced == 0 {
		close(r.placed)
	}
}

// partlyFailed reports whether some but not all records of a topic have failed before the others were sent. The others
// must not be sent, because they may be behind a failed one. A record that was written already is no failure: when a
// round begins immediately after another one, the client may still be looking for records to send.
func (r *round) partlyFailed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == len(r.records) {
		return false
	}
	failed := make(map[string]bool)
	for i := range r.records {
		topic := r.records[i].Topic
		failed[topic] = failed[topic] || r.errs[i] != nil
	}
	for i := range r.records {
		if !r.done[i] && failed[r.records[i].Topic] {
			return true
		}
	}
	return false
}

// logger passes the client's warnings and errors to slog.
type logger struct{ to *lograte.Limit }

func (logger) Level() kgo.LogLevel { return kgo.LogLevelWarn }

func (l logger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	to := slog.LevelWarn
	if level == kgo.LogLevelError {
		to = slog.LevelError
	}
	l.to.Log(context.Background(), to, "kafka client: "+msg, keyvals...)
}
