package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// call is one call of Publish. It sends events in rounds. Each round waits for the one before. In a round, the events with
// one key go to one topic, and a topic gets no more than fits into a batch.
type call struct {
	p       *Publisher
	events  []publish.Outgoing
	records []*kgo.Record // nil if an event could not be encoded
	errs    []error
	settled []bool
	open    int // number of events that are not settled

	failed map[string]bool  // keys
	down   map[string]error // topics that are unavailable
	halted error            // why no more events are sent
}

func newCall(p *Publisher, events []publish.Outgoing) *call {
	c := &call{
		p: p, events: events, records: make([]*kgo.Record, len(events)), errs: make([]error, len(events)),
		settled: make([]bool, len(events)), open: len(events),
		failed: make(map[string]bool), down: make(map[string]error),
	}
	return c
}

func (c *call) run(ctx context.Context, producer *client) {
	refused := make(map[int]error)
	for i, o := range c.events {
		record, err := recordOf(c.p.cfg.Encoder, o)
		if err != nil {
			refused[i] = err
		}
		c.records[i] = record
	}
	for c.open > 0 {
		round := c.next(refused)
		c.deliver(ctx, producer, round)
	}
}

// next settles the events that need not be sent, and returns the events of the next round.
func (c *call) next(refused map[int]error) []int {
	var round []int
	topicOf := make(map[string]string) // by key, in this round
	held := make(map[string]bool)      // keys whose further events wait for the next round
	bytes := make(map[string]int)      // by topic
	for i, o := range c.events {
		if c.settled[i] || len(round) == maxRound {
			continue
		}
		if o.Key != "" && held[o.Key] {
			continue
		}
		topic, follows := topicOf[o.Key]
		follows = follows && o.Key != ""
		err, bad := refused[i]
		switch {
		case bad && follows:
			held[o.Key] = true // until the events before it have been sent
			continue
		case bad:
			c.settle(i, c.unlessBehind(i, err))
			continue
		}
		size := sizeOf(c.records[i])
		full := bytes[o.Destination] > 0 && bytes[o.Destination]+size > c.p.cfg.BatchBytes-batchOverhead
		if full || follows && topic != o.Destination {
			held[o.Key] = true
			continue
		}
		topicOf[o.Key] = o.Destination
		bytes[o.Destination] += size
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
	records := make([]*kgo.Record, len(round))
	for at, i := range round {
		again := *c.records[i] // the client writes into records
		records[at] = &again
	}
	waiting, cancel := context.WithTimeoutCause(ctx, c.p.cfg.Timeout, errNoAnswer)
	defer cancel()
	began := time.Now()
	errs, unsent := producer.produce(waiting, records)

	c.remember(producer, round, records, errs, unsent)
	batches := make(map[target][]int)
	var targets []target
	for at, i := range round {
		topic := records[at].Topic
		if v := classOf(errs[at]); v == refused || v == doubtful {
			t := target{topic, records[at].Partition}
			if batches[t] == nil {
				targets = append(targets, t)
			}
			batches[t] = append(batches[t], at)
			continue
		}
		c.settle(i, c.unlessBehind(i, c.outcome(waiting, producer, began, topic, errs[at], unsent[at])))
	}
	var firsts, seconds []int
	for _, t := range targets {
		batch := batches[t]
		if len(batch) == 1 {
			at := batch[0]
			c.settle(round[at], c.unlessBehind(round[at], c.outcome(waiting, producer, began, t.topic, errs[at], unsent[at])))
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
	c.deliver(ctx, producer, seconds)
}

// remember notes which keys have failed records that may still be in flight, and which keys no longer have any.
func (c *call) remember(producer *client, round []int, records []*kgo.Record, errs []error, unsent []bool) {
	written := make(map[target]bool)
	for at, i := range round {
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
	var sendable []int
	for _, i := range round {
		o := c.events[i]
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
	if key := c.events[i].Key; err != nil && key != "" {
		c.failed[key] = true
	}
}

// unlessBehind returns err, or ErrBehind if an earlier event with the key has failed.
func (c *call) unlessBehind(i int, err error) error {
	if err != nil && c.failed[c.events[i].Key] {
		return outbox.ErrBehind
	}
	return err
}

// outcome returns the result of Publish for an event, and notes what the error means for other events.
func (c *call) outcome(waiting context.Context, producer *client, began time.Time, topic string, err error, unsent bool) error {
	if err == nil {
		c.p.topics.Forget(topic)
		return nil
	}
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
	described := produceError(topic, err)
	class := classOf(err)
	if class != unknown {
		c.p.topics.Forget(topic)
	}
	switch class {
	case refused, invalid:
		return outbox.Permanent(described)
	case unknown:
		c.retire(producer) // a new producer knows the topic only if it exists
		c.down[topic] = c.p.topics.Missing(topic, described)
		return c.down[topic]
	case fenced:
		c.retire(producer)
		return outbox.Unavailable(described)
	case denied:
		c.halted = outbox.BrokerUnavailable(described)
		return c.halted
	case unreached:
		if producer.away() {
			return outbox.BrokerUnavailable(described)
		}
		c.down[topic] = outbox.Unavailable(described)
		return c.down[topic]
	case unavailable:
		c.down[topic] = outbox.Unavailable(described)
		return c.down[topic]
	default:
		return described
	}
}

// retire stops the use of a producer, except for the keys that are bound to it. If it has failed for these too, it cannot
// make the cluster refuse their late records, and retire unbinds them.
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
