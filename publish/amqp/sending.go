package amqp

import (
	"context"
	"fmt"
	"time"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/internal/flight"
)

// sending sends the events of one call of Publish.
type sending struct {
	p         *Publisher
	ctx       context.Context
	link      *link // nil without a connection
	events    []publish.Outgoing
	entries   []*entry // by position
	encoding  encoding
	pipelines map[lane]*pipeline
	gathered  []*pipeline // those that have gathered something
	count     int         // what they have gathered
	large     int         // how many large messages were begun
}

// lane says which messages share a pipeline.
type lane struct {
	destination string
	alone       int // 0 for those that are sent together; others are sent one at a time
}

// aloneFrom is the size of a body from which on a message is sent alone, because RabbitMQ may find it too large: as the
// only unconfirmed message of its channel, on one of so many channels for each destination. So no other is sent again.
const (
	aloneFrom     = 64 << 10
	aloneChannels = 64
)

var _ flight.Sender = (*sending)(nil)

// gatheredAtMost is how many messages are gathered before they are sent, so that RabbitMQ works while further ones are
// encoded.
const gatheredAtMost = 100

func (p *Publisher) newSending(ctx context.Context, events []publish.Outgoing) *sending {
	return &sending{
		p: p, ctx: ctx, link: p.conn.current(), events: events, entries: make([]*entry, len(events)),
		encoding: encoding{encoder: p.cfg.Encoder}, pipelines: make(map[lane]*pipeline),
	}
}

// Begin gathers an event for its pipeline.
func (s *sending) Begin(c *flight.Call, i int) {
	e := &entry{i: i, begun: time.Now()}
	to, err := s.prepare(c, &s.events[i], e)
	if err != nil {
		c.Finish(i, err)
		return
	}
	s.entries[i] = e
	if len(to.gathered) == 0 {
		s.gathered = append(s.gathered, to)
	}
	to.gathered = append(to.gathered, e)
	if s.count++; s.count == gatheredAtMost {
		s.Flush(c)
	}
}

// prepare makes the message of an event, and returns its pipeline. An error is the event's result.
func (s *sending) prepare(c *flight.Call, o *publish.Outgoing, e *entry) (*pipeline, error) {
	p := s.p
	if p.closing.Err() != nil {
		return nil, outbox.BrokerUnavailable(ErrClosed)
	}
	to, err := parseAddress(o.Destination)
	if err != nil {
		return nil, outbox.Permanent(fmt.Errorf("publish to RabbitMQ: %w", err))
	}
	if e.msg, err = s.encoding.message(o); err != nil {
		return nil, err
	}
	if s.link == nil {
		p.routes.Forget(o.Destination)
		return nil, outbox.BrokerUnavailable(p.describe(o.Destination, errNotConnected))
	}
	if err := s.link.fits(e.msg); err != nil {
		return nil, outbox.Permanent(p.describe(o.Destination, err))
	}
	if why := s.link.blocked.Load(); why != nil {
		p.routes.Forget(o.Destination)
		return nil, outbox.BrokerUnavailable(p.describe(o.Destination,
			fmt.Errorf("RabbitMQ takes no messages at present: %s", *why)))
	}
	at := lane{destination: o.Destination}
	if len(e.msg.Body) >= p.aloneFrom {
		at.alone = 1 + s.large%aloneChannels
		s.large++
	}
	if s.pipelines[at] == nil {
		s.pipelines[at] = &pipeline{
			p: p, ctx: s.ctx, call: c, link: s.link, destination: o.Destination, to: to, alone: at.alone > 0,
			more: make(chan struct{}, 1),
		}
	}
	return s.pipelines[at], nil
}

// Flush submits what was gathered.
func (s *sending) Flush(*flight.Call) {
	for _, to := range s.gathered {
		to.submit()
	}
	s.gathered, s.count = s.gathered[:0], 0
}

// Lost implements flight.Sender.
func (s *sending) Lost(i int, cause error) error {
	e := s.entries[i]
	notSent := e != nil && !e.drop()
	if s.p.closing.Err() != nil {
		return outbox.BrokerUnavailable(ErrClosed)
	}
	err := s.p.describe(s.events[i].Destination, cause)
	if notSent {
		return fmt.Errorf("%w: %w", outbox.ErrNotSent, err)
	}
	return err
}
