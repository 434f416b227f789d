package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// call is one call of Publish. It sends events in rounds. Each round waits for the one before. In a round, the events
// with one key go to one topic, and a topic gets no more than fits into a batch.
type call struct {
	p       *Publisher
	lane    *lane // nil unless the call has a transactional id
	of      publish.Lane
	fenced  int // how often another process has taken its transactional id
	events  []publish.Outgoing
	records []record
	refused map[int]error // events that could not be encoded
	single  bool          // all events have the same destination
	errs    []error
	settled []bool
	open    int // number of events that are not settled

	failed map[string]bool  // keys
	down   map[string]error // topics that are unavailable
	halted error            // why no more events are sent
}

func newCall(p *Publisher, events []publish.Outgoing) *call {
	c := &call{
		p: p, events: events, records: make([]record, len(events)), refused: make(map[int]error),
		single: sameDestination(events), errs: make([]error, len(events)), settled: make([]bool, len(events)),
		open: len(events), failed: make(map[string]bool), down: make(map[string]error),
	}
	return c
}

// sameDestination reports whether all events have the destination of the first.
func sameDestination(events []publish.Outgoing) bool {
	for i := range events {
		if events[i].Destination != events[0].Destination {
			return false
		}
	}
	return true
}

func (c *call) run(ctx context.Context, producer *client) {
	e := encoding{encoder: c.p.cfg.Encoder, left: len(c.events)}
	for i := range c.events {
		var err error
		if c.records[i], err = e.record(&c.events[i]); err != nil {
			c.refused[i] = err
		}
	}
	for c.open > 0 {
		round := c.next()
		c.deliver(ctx, producer, round)
	}
}

// next settles the events that need not be sent, and returns the events of the next round.
func (c *call) next() []int {
	round := make([]int, 0, min(c.open, maxRound))
	topicOf := make(map[string]string) // by key, in this round; not used if all have the same destination
	held := make(map[string]bool)      // keys whose further events wait for the next round
	bytes := make(map[string]*int)     // by topic
	var topic string                   // of the event before
	var used *int                      // bytes of this topic
	for i := range c.events {
		if c.settled[i] {
			continue
		}
		if len(round) == maxRound {
			break
		}
		o := &c.events[i]
		if o.Key != "" && held[o.Key] {
			continue
		}
		if err := c.refused[i]; err != nil {
			if o.Key != "" && slices.ContainsFunc(round, func(n int) bool { return c.events[n].Key == o.Key }) {
				held[o.Key] = true // until the events before it have been sent
			} else {
				c.settle(i, c.unlessBehind(i, err))
			}
			continue
		}
		if used == nil || o.Destination != topic {
			if topic, used = o.Destination, bytes[o.Destination]; used == nil {
				used = new(int)
				bytes[topic] = used
			}
		}
		wait := *used > 0 && *used+c.records[i].size > c.p.cfg.BatchBytes-batchOverhead
		if !c.single && o.Key != "" {
			to, follows := topicOf[o.Key]
			if wait = wait || follows && to != topic; !wait {
				topicOf[o.Key] = topic
			}
		}
		if wait {
			held[o.Key] = true
			continue
		}
		*used += c.records[i].size
		round = append(round, i)
	}
	return round
}

// deliver sends events, in order, and settles each of them. A batch that is refused is sent again in halves, until each
// refused event is alone.
func (c *call) deliver(ctx context.Context, producer *client, round []int) {
	if c.halted == nil && ctx.Err() != nil {
		c.halted = notSent(ctx)
	}
	round = c.sendable(round)
	if len(round) == 0 {
		return
	}
	if c.lane != nil {
		var err error
		if producer, err = c.producer(ctx); err != nil {
			c.halted = err
			c.sendable(round)
			return
		}
	}
	records := make([]kgo.Record, len(round)) // for each attempt, because the client writes into records
	began := time.Now()
	for at, i := range round {
		r := &c.records[i]
		records[at] = kgo.Record{
			Topic: c.events[i].Destination, Key: r.key, Value: r.value, Headers: r.headers, Timestamp: began,
		}
	}
	waiting, cancel := context.WithTimeoutCause(ctx, c.p.cfg.Timeout, errNoAnswer)
	defer cancel()
	errs, unsent := producer.produce(waiting, records)
	if c.lane != nil {
		c.conclude(waiting, producer, records, errs)
	} else {
		c.remember(producer, round, records, errs, unsent)
	}
	batches := make(map[target][]int)
	var targets []target
	var known string // a topic that has taken a record
	for at, i := range round {
		topic := records[at].Topic
		if errs[at] == nil {
			if topic != known {
				c.p.topics.Forget(topic)
				known = topic
			}
			c.settle(i, nil)
			continue
		}
		if errs[at] == errAborted {
			continue // for the next round
		}
		if v := classOf(errs[at]); v == refused || v == doubtful {
			t := target{topic, records[at].Partition}
			if batches[t] == nil {
				targets = append(targets, t)
			}
			batches[t] = append(batches[t], at)
			continue
		}
		c.settle(i, c.unlessBehind(i, c.resultOf(waiting, producer, began, topic, errs[at], unsent[at])))
	}
	var firsts, seconds []int
	for _, t := range targets {
		batch := batches[t]
		if len(batch) == 1 {
			at := batch[0]
			c.settle(round[at], c.unlessBehind(round[at], c.resultOf(waiting, producer, began, t.topic, errs[at], unsent[at])))
			continue
		}
		for n, at := range batch {
			if n < len(batch)/2 {
				firsts = append(firsts, round[at])
			} else {
				seconds = append(seconds, round[at])
			}
		}
	}
	cancel()
	c.deliver(ctx, producer, firsts)
	if slices.ContainsFunc(firsts, func(i int) bool { return !c.settled[i] }) {
		return // their transaction was aborted: they come again in the next round, before those behind them
	}
	c.deliver(ctx, producer, seconds)
}

// remember notes which keys have failed records that may still be in flight, and which keys no longer have any.
func (c *call) remember(producer *client, round []int, records []kgo.Record, errs []error, unsent []bool) {
	written := make(map[target]bool)
	doubts := c.p.pool.doubts(producer)
	for at, i := range round {
		if errs[at] == nil && !doubts {
			continue
		}
		t, key := target{records[at].Topic, records[at].Partition}, c.events[i].Key
		switch v := classOf(errs[at]); {
		case v == taken && !written[t]:
			written[t] = true
			c.p.pool.wrote(producer, t)
		case v == taken, key == "", unsent[at], v == refused, v == doubtful, v == invalid, v == unknown:
		default:
			c.p.pool.doubt(producer, key, t)
		}
	}
}

// halt settles all events with err, except those that could not be sent anyway.
func (c *call) halt(ctx context.Context, err error) []error {
	c.halted = err
	c.run(ctx, nil)
	return c.errs
}

// sendable settles the events that must not be sent any more, and returns the others.
func (c *call) sendable(round []int) []int {
	if c.halted == nil && len(c.failed) == 0 && len(c.down) == 0 {
		return round
	}
	var sendable []int
	for _, i := range round {
		o := &c.events[i]
		switch {
		case c.failed[o.Key]:
			c.settle(i, outbox.ErrBehind)
		case c.halted != nil:
			c.settle(i, c.halted)
		case c.down[o.Destination] != nil:
			c.settle(i, c.down[o.Destination])
		default:
			sendable = append(sendable, i)
		}
	}
	return sendable
}

func (c *call) settle(i int, err error) {
	c.errs[i], c.settled[i] = err, true
	c.open--
	if err != nil && c.events[i].Key != "" {
		c.failed[c.events[i].Key] = true
	}
}

// unlessBehind returns err, or ErrBehind if an earlier event with the key has failed.
func (c *call) unlessBehind(i int, err error) error {
	if err != nil && c.failed[c.events[i].Key] {
		return outbox.ErrBehind
	}
	return err
}

// resultOf returns the result of Publish for an event that has failed, and notes what the error means for other events.
func (c *call) resultOf(
	waiting context.Context, producer *client, began time.Time, topic string, err error, unsent bool,
) error {
	if _, answered := errors.AsType[*kerr.Error](err); !answered && waiting.Err() != nil {
		if errors.Is(context.Cause(waiting), errNoAnswer) {
			c.p.topics.Forget(topic)
			err := c.noAnswer(topic, producer, began)
			if producer.away() {
				c.halted = outbox.BrokerUnavailable(err)
			} else {
				c.halted = outbox.Unavailable(err)
			}
			return c.halted
		}
		c.halted = notSent(waiting)
		if unsent {
			return c.halted
		}
		return ended(waiting)
	}
	described := produceError(topic, producer.explain(err))
	class := classOf(err)
	if class != unknown {
		c.p.topics.Forget(topic)
	}
	switch class {
	case refused, invalid:
		return outbox.Permanent(described)
	case unknown:
		c.retire(producer) // a new producer knows the topic only if it exists
		c.down[topic] = c.p.topics.Missing(topic,
			produceError(topic, fmt.Errorf("there is no such topic: create it: %w", err)))
		return c.down[topic]
	case fenced:
		c.retire(producer)
		return outbox.Unavailable(described)
	case denied:
		c.retire(producer) // it may be its id that was refused, and the client does not ask for one again
		c.halted = outbox.BrokerUnavailable(described)
		return c.halted
	case unreached:
		if producer.away() {
			return outbox.BrokerUnavailable(described)
		}
		c.down[topic] = outbox.Unavailable(described)
		return c.down[topic]
	case noID:
		c.retire(producer)
		fallthrough
	case unavailable:
		c.down[topic] = outbox.Unavailable(described)
		return c.down[topic]
	default:
		return described
	}
}

// retire stops the use of a producer, except for the keys that are bound to it. If it has failed for these too, it
// cannot make the cluster refuse their late records, and retire unbinds them.
func (c *call) retire(producer *client) {
	if producer.broken {
		c.p.pool.abandon(producer)
	}
	producer.unfit = true
}

// noAnswer returns an error that says which brokers did not answer, and the last error of a connection.
func (c *call) noAnswer(topic string, producer *client, began time.Time) error {
	err := fmt.Errorf("produce to %s: %w at %s after %s",
		topic, errNoAnswer, strings.Join(c.p.cfg.Brokers, ","), time.Since(began).Round(time.Millisecond))
	if connErr := producer.connErr.Load(); connErr != nil {
		return fmt.Errorf("%w: %w", err, *connErr)
	}
	return err
}
