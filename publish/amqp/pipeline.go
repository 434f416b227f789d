package amqp

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/outboxgen/outboxgen/publish/internal/flight"
)

// errNoConfirm is the error of a message that is not confirmed in time.
var errNoConfirm = errors.New("no confirmation from RabbitMQ")

// entry is an event on its way to its destination. It may outlive its call of Publish.
type entry struct {
	i     int // its position in the call
	msg   amqp091.Publishing
	begun time.Time
	state atomic.Int32
	done  bool // it has its result
}

// The states of an entry. The first to change it decides whether the message is sent.
const (
	waiting int32 = iota
	handed        // it may have been sent
	dropped       // it will not be sent
)

// hand reports whether the message may be sent, for the first time or again.
func (e *entry) hand() bool {
	return e.state.CompareAndSwap(waiting, handed) || e.state.Load() == handed
}

// drop ends the wait for the result. It reports whether the message may have been sent.
func (e *entry) drop() (sent bool) { return !e.state.CompareAndSwap(waiting, dropped) }

// pipeline sends the events of one call of Publish for one destination. They share a channel, and none waits for the
// confirmation of another. When RabbitMQ refuses something, it ends the channel and does not say which message it means.
// What concerns the destination is then the result of all that are not confirmed. Otherwise they are sent again, half as
// many at a time after each refusal, until the one that is refused is alone.
type pipeline struct {
	p           *Publisher
	ctx         context.Context // of Publish
	call        *flight.Call
	link        *link
	destination string
	to          address
	alone       bool     // one message at a time
	gathered    []*entry // not submitted yet; used by the goroutine of the call
	more        chan struct{}

	mu       sync.Mutex
	incoming []*entry // submitted
	running  bool

	// The following is used by run only.
	timer    *time.Timer // ends at the earliest when the next entry has waited for too long
	channel  *channel
	queue    []*entry // to be sent, or to be sent again
	sent     []*entry // not confirmed yet, in the order of the channel
	open     int      // how many of sent have no result
	window   int      // the maximum of open; 0 means no limit
	returned map[string]*unroutable
}

// submit sends what was gathered.
func (l *pipeline) submit() {
	l.mu.Lock()
	l.incoming = append(l.incoming, l.gathered...)
	start := !l.running
	l.running = true
	l.mu.Unlock()
	l.gathered = l.gathered[:0]
	if start {
		l.p.sends.Go(l.run)
		return
	}
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// run sends until nothing is left, or until nobody waits for the results.
func (l *pipeline) run() {
	l.timer = time.NewTimer(l.p.cfg.Timeout)
	for !l.end() {
		if l.channel != nil || l.acquire() {
			l.send()
			l.wait()
		}
		l.call.Wake()
	}
}

// end takes what was submitted. It reports whether nothing is left to do, and then lets go of the channel.
func (l *pipeline) end() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, l.incoming...)
	l.incoming = nil
	if len(l.queue)+l.open > 0 && !l.over() {
		return false
	}
	l.leave()
	l.timer.Stop()
	l.running = false
	return true
}

// over reports whether nobody waits for the results.
func (l *pipeline) over() bool { return l.ctx.Err() != nil || l.p.closing.Err() != nil }

// leave lets go of the channel. Another may use it if nothing can come anymore that is not about its own messages.
func (l *pipeline) leave() {
	if l.channel != nil {
		l.link.release(l.channel, len(l.sent) == 0)
	}
	l.channel, l.sent, l.open, l.returned = nil, nil, 0, nil
}

// acquire gets a channel. It reports false if there is none, or none yet.
func (l *pipeline) acquire() bool {
	channel, err := l.link.acquire(l.ctx, l.p.closing, l.timer.C)
	switch {
	case err == nil:
		l.channel = channel
		return true
	case l.over(): // the call gives the results
	case errors.Is(err, errNoChannel):
		l.expire(err)
	default:
		l.finish(l.queue, l.p.resultOf(l.link, l.destination, l.to, err))
		l.queue = nil
	}
	return false
}

// send sends what may be sent.
func (l *pipeline) send() {
	for len(l.queue) > 0 && l.room() && !l.over() {
		e := l.queue[0]
		l.queue = l.queue[1:]
		if e.done || !e.hand() {
			continue
		}
		err := l.channel.Publish(l.to.exchange, l.to.key, true, false, e.msg)
		if err != nil && !l.channel.IsClosed() {
			l.finish([]*entry{e}, l.p.resultOf(l.link, l.destination, l.to, err))
			continue
		}
		l.sent = append(l.sent, e)
		l.open++
		if err != nil {
			l.failed(err)
			return
		}
	}
}

// room reports whether one more message may be sent before others are confirmed.
func (l *pipeline) room() bool {
	return l.open == 0 || !l.alone && (l.window == 0 || l.open < l.window)
}

// wait waits for something to do.
func (l *pipeline) wait() {
	if l.open == 0 {
		return
	}
	select {
	case ack, is := <-l.channel.acks:
		for is {
			l.confirmed(ack)
			select {
			case ack, is = <-l.channel.acks:
			default:
				return
			}
		}
		l.failed(errDown)
	case r := <-l.channel.returns:
		l.note(r)
	case <-l.more:
	case <-l.timer.C:
		l.expire(errNoConfirm)
	case <-l.link.down:
		l.failed(errDown)
	case <-l.ctx.Done():
	case <-l.p.closing.Done():
	}
}

// note remembers a message that no queue gets. RabbitMQ says so before it confirms the message.
func (l *pipeline) note(r amqp091.Return) {
	if l.returned == nil {
		l.returned = make(map[string]*unroutable)
	}
	l.returned[r.MessageId] = &unroutable{code: r.ReplyCode, text: r.ReplyText}
}

// confirmed records the confirmation of the oldest message.
func (l *pipeline) confirmed(ack amqp091.Confirmation) {
	for noted := true; noted; {
		select {
		case r, is := <-l.channel.returns:
			if noted = is; is {
				l.note(r)
			}
		default:
			noted = false
		}
	}
	e := l.sent[0]
	if l.sent = l.sent[1:]; e.done {
		return // too late
	}
	l.open--
	if l.window > 0 {
		l.window++
	}
	var err error
	if !ack.Ack {
		err = errNack
	} else if r := l.returned[e.msg.MessageId]; r != nil {
		err = r
	}
	if err == nil {
		l.p.routes.Forget(l.destination)
	} else {
		err = l.p.resultOf(l.link, l.destination, l.to, err)
	}
	l.finish([]*entry{e}, err)
}

// failed decides what the end of the channel means for the messages that are not confirmed.
func (l *pipeline) failed(err error) {
	for ack := range l.channel.acks {
		l.confirmed(ack)
	}
	err = l.link.why(l.channel, err)
	var suspects []*entry
	for _, e := range l.sent {
		if !e.done {
			suspects = append(suspects, e)
		}
	}
	l.leave()
	switch {
	case l.link.conn.IsClosed(), ofDestination(err):
		l.finish(append(suspects, l.queue...), l.p.resultOf(l.link, l.destination, l.to, err))
		l.queue = nil
	case len(suspects) < 2:
		l.finish(suspects, l.p.resultOf(l.link, l.destination, l.to, err))
	default:
		l.window = len(suspects) / 2
		l.queue = append(suspects, l.queue...)
	}
}

// expire gives err to what has waited for too long.
func (l *pipeline) expire(err error) {
	now := time.Now()
	next := l.p.cfg.Timeout
	late := func(list []*entry) (late []*entry) {
		for _, e := range list {
			if left := l.p.cfg.Timeout - now.Sub(e.begun); !e.done && left > 0 {
				next = min(next, left)
				break
			}
			if !e.done {
				late = append(late, e)
			}
		}
		return late
	}
	sent := late(l.sent)
	l.open -= len(sent)
	if expired := append(sent, late(l.queue)...); len(expired) > 0 {
		l.finish(expired, l.p.resultOf(l.link, l.destination, l.to, err))
	}
	l.timer.Reset(next)
}

// finish gives entries their result.
func (l *pipeline) finish(entries []*entry, err error) {
	for _, e := range entries {
		if !e.done {
			e.done = true
			l.call.Add(e.i, err)
		}
	}
}
