package redis

import (
	"context"
	"errors"
	"fmt"

	goredis "github.com/redis/go-redis/v9"

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
	gathered []*entry
	room     []entry // for the next entries
}

var _ flight.Sender = (*sending)(nil)

// entry is an event on its way to its stream. It may outlive its call of Publish.
type entry struct {
	ctx    context.Context // of Publish
	call   *flight.Call
	i      int // its position in the call
	stream string
	args   []any
	size   int
	added  *goredis.StringCmd // nil until it is sent
}

func (p *Publisher) newSending(ctx context.Context, events []publish.Outgoing) *sending {
	return &sending{p: p, ctx: ctx, events: events, encoding: encoding{encoder: p.cfg.Encoder, left: len(events)}}
}

// streamAt is the position of the stream in the arguments of a command.
const streamAt = 1

// command returns how the command of each event begins.
func (cfg Config) command() []any {
	args := []any{"xadd", ""}
	if !cfg.CreateStreams {
		args = append(args, "nomkstream")
	}
	if cfg.MaxLen > 0 {
		args = append(args, "maxlen", "~", cfg.MaxLen)
	}
	return append(args, "*")
}

// Begin gathers an event. To a cluster it is sent immediately.
func (s *sending) Begin(c *flight.Call, i int) {
	p, o := s.p, &s.events[i]
	if p.closing.Err() != nil {
		c.Finish(i, outbox.BrokerUnavailable(ErrClosed))
		return
	}
	if o.Destination == "" {
		c.Finish(i, outbox.Permanent(errors.New("publish to Redis: the destination is empty")))
		return
	}
	args, size, err := s.encoding.command(p.command, o)
	if err != nil {
		c.Finish(i, err)
		return
	}
	if size > p.cfg.MaxBytes {
		c.Finish(i, outbox.Permanent(p.describe(o.Destination,
			fmt.Errorf("the message has %d bytes, more than MaxBytes, %d", size, p.cfg.MaxBytes))))
		return
	}
	args[streamAt] = o.Destination
	if len(s.room) == 0 {
		s.room = make([]entry, min(len(s.events), eventsTogether))
	}
	e := &s.room[0]
	s.room = s.room[1:]
	*e = entry{ctx: s.ctx, call: c, i: i, stream: o.Destination, args: args, size: size}
	if p.cluster == nil {
		if s.gathered = append(s.gathered, e); len(s.gathered) == gatheredAtMost {
			s.Flush(c)
		}
		return
	}
	p.sends.Go(func() {
		// The client ends a command when its connection answers or times out, but not when a context is canceled.
		sending, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), p.cfg.Timeout)
		defer cancel()
		c.Finish(i, p.outcome(e, p.addInCluster(sending, e)))
	})
}

// gatheredAtMost is how many entries are gathered before they are sent, so that Redis works while further ones are encoded.
const gatheredAtMost = 250

// Flush sends what was gathered.
func (s *sending) Flush(*flight.Call) {
	if len(s.gathered) > 0 {
		s.p.submit(s.gathered)
		s.gathered = s.gathered[:0]
	}
}

// Lost implements flight.Sender.
func (s *sending) Lost(i int, cause error) error {
	if s.p.closing.Err() != nil {
		return outbox.BrokerUnavailable(ErrClosed)
	}
	return s.p.describe(s.events[i].Destination, cause)
}

// outcome returns the result of Publish for an event whose command has ended with err.
func (p *Publisher) outcome(e *entry, err error) error {
	switch {
	case err == nil:
		p.streams.Forget(e.stream)
		return nil
	case p.closing.Err() != nil:
		return outbox.BrokerUnavailable(ErrClosed)
	}
	return p.resultOf(e.stream, err)
}
