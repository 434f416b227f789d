package nats

import (
	"context"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/internal/flight"
)

// sending sends the events of one call of Publish.
type sending struct {
	p        *Publisher
	ctx      context.Context
	events   []publish.Outgoing
	encoding encoding
	messages []*nats.Msg // by the position of the event; nil if it was not sent
}

var _ flight.Sender = (*sending)(nil)

func (p *Publisher) newSending(ctx context.Context, events []publish.Outgoing) *sending {
	return &sending{
		p: p, ctx: ctx, events: events, messages: make([]*nats.Msg, len(events)),
		encoding: encoding{encoder: p.cfg.Encoder, stream: p.cfg.Stream, left: len(events)},
	}
}

// asIs lets an error come as it is: otherwise the client sends a message again for which there was no stream.
var asIs = jetstream.WithRetryAttempts(0)

// Begin hands a message to the client, which tells the Publisher what becomes of it.
func (s *sending) Begin(c *flight.Call, i int) {
	p, o := s.p, &s.events[i]
	if p.closing.Err() != nil {
		c.Finish(i, outbox.BrokerUnavailable(ErrClosed))
		return
	}
	msg, err := s.encoding.message(o)
	if err != nil {
		c.Finish(i, err)
		return
	}
	if !p.conn.IsConnected() {
		c.Finish(i, p.resultOf(s.ctx, o.Destination, errNotConnected))
		return
	}
	s.messages[i] = msg
	p.waiting.add(msg, place{c, s, i})
	if _, err := p.js.PublishMsgAsync(msg, asIs); err != nil {
		p.refusedLater(p.js, msg, err)
	}
}

// Flush does nothing: the client sends by itself.
func (s *sending) Flush(*flight.Call) {}

// Lost implements flight.Sender.
func (s *sending) Lost(i int, cause error) error {
	s.p.waiting.take(s.messages[i])
	if s.p.closing.Err() != nil {
		return outbox.BrokerUnavailable(ErrClosed)
	}
	return s.p.describe(s.events[i].Destination, cause)
}

// place says whose message it is that waits for a confirmation.
type place struct {
	call *flight.Call
	of   *sending
	i    int
}

// waiting has the messages that wait for a confirmation.
type waiting struct {
	mu       sync.Mutex
	messages map[*nats.Msg]place
}

func (w *waiting) add(msg *nats.Msg, at place) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.messages == nil {
		w.messages = make(map[*nats.Msg]place)
	}
	w.messages[msg] = at
}

// take returns whose msg is. It does so once.
func (w *waiting) take(msg *nats.Msg) (at place, is bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, is = w.messages[msg]
	delete(w.messages, msg)
	return at, is
}

// confirmedLater is called by the client when a message is confirmed.
func (p *Publisher) confirmedLater(_ jetstream.JetStream, msg *nats.Msg, ack *jetstream.PubAck) {
	at, is := p.waiting.take(msg)
	if !is {
		return
	}
	err := p.checkStream(msg.Subject, ack)
	if err == nil && ack.Duplicate {
		at.call.Later(at.i, func() error { return p.duplicate(at.of.ctx, &at.of.events[at.i], msg, ack) })
		return
	}
	if err == nil {
		p.streams.Forget(msg.Subject)
	}
	at.call.Finish(at.i, err)
}

// refusedLater is called when a message is not confirmed. The client may hold its lock.
func (p *Publisher) refusedLater(_ jetstream.JetStream, msg *nats.Msg, err error) {
	if at, is := p.waiting.take(msg); is {
		at.call.Later(at.i, func() error { return p.resultOf(at.of.ctx, msg.Subject, err) })
	}
}

// checkStream returns an error if another stream than that of the configuration has confirmed a message.
func (p *Publisher) checkStream(subject string, ack *jetstream.PubAck) error {
	if p.cfg.Stream == "" || ack.Stream == p.cfg.Stream {
		return nil
	}
	return outbox.Unavailable(p.describe(subject,
		fmt.Errorf("confirmed by %q, which is not the stream %s", ack.Stream, p.cfg.Stream)))
}

// duplicate returns the result of an event of which msg was confirmed as a duplicate. A message that a purge, a limit or
// a consumer has removed from the stream is still reported as a duplicate. So it sends the event again under another id if
// the stream does not have it.
func (p *Publisher) duplicate(ctx context.Context, o *publish.Outgoing, msg *nats.Msg, ack *jetstream.PubAck) error {
	p.duplicates.Add(1)
	for names := 1; ; names++ {
		if p.has(ctx, ack, msg) {
			p.streams.Forget(o.Destination)
			return nil
		}
		if ctx.Err() != nil {
			return p.describe(o.Destination, context.Cause(ctx))
		}
		if names == maxNames {
			return outbox.Unavailable(p.describe(o.Destination, errDuplicate))
		}
		p.again.Add(1)
		msg = renamed(msg, o, ack)
		var err error
		if ack, err = p.confirmed(ctx, msg); err != nil {
			return err
		}
		if !ack.Duplicate {
			p.streams.Forget(o.Destination)
			return nil
		}
	}
}
