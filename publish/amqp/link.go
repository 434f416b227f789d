package amqp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// maxChannels is the number of channels of a connection if the server does not limit it.
const maxChannels = 2000

// closeTimeout is how long the server may take to answer that we close the connection.
const closeTimeout = time.Second

// link is a connection to a server, with senders to send messages on.
type link struct {
	conn    *amqp091.Connection
	raw     net.Conn
	closed  chan *amqp091.Error
	blocks  chan amqp091.Blocking
	blocked atomic.Pointer[string] // why the server takes no messages; nil while it does
	down    chan struct{}          // closed when the connection has ended
	slots   chan struct{}          // has an element for each sender
	senders sync.WaitGroup

	mu   sync.Mutex
	idle []*sender
	keep int // the maximum number of idle senders
}

func newLink(conn *amqp091.Connection, raw net.Conn, keep int) *link {
	limit := maxChannels
	if max := int(conn.Config.ChannelMax); max > 0 && max < limit {
		limit = max
	}
	return &link{
		conn: conn, raw: raw, keep: keep, down: make(chan struct{}), slots: make(chan struct{}, limit),
		closed: conn.NotifyClose(make(chan *amqp091.Error, 1)), blocks: conn.NotifyBlocked(make(chan amqp091.Blocking, 8)),
	}
}

// serve waits until the connection or ctx ends. It returns after all senders have ended, with the error of the
// connection.
func (l *link) serve(ctx context.Context) error {
	var err error
	for err == nil {
		select {
		case b := <-l.blocks:
			if b.Active {
				l.blocked.Store(&b.Reason)
			} else {
				l.blocked.Store(nil)
			}
			continue
		case problem, abnormal := <-l.closed:
			if err = errors.New("the connection was closed"); abnormal {
				err = problem
			}
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	timer := time.AfterFunc(closeTimeout, func() { _ = l.raw.Close() })
	_ = l.conn.Close() // an error means that it was closed already, or that the server did not answer
	timer.Stop()
	_ = l.raw.Close()
	l.mu.Lock()
	close(l.down)
	l.mu.Unlock()
	l.senders.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// errDown is the error of a connection that has ended.
var errDown = errors.New("the connection was lost")

// errNoChannel is the error of an event that gets no channel in time.
var errNoChannel = errors.New("all channels of the connection are in use: the server's channel_max is too low for " +
	"the number of destinations, or the server does not answer")

// acquire returns a sender that nobody else uses. An error means that one of the other arguments or the connection has
// ended.
func (l *link) acquire(ctx, closing context.Context, timeout <-chan time.Time) (*sender, error) {
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-closing.Done():
		return nil, closing.Err()
	case <-l.down:
		return nil, errDown
	case <-timeout:
		return nil, errNoChannel
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if last := len(l.idle) - 1; last >= 0 {
		free := l.idle[last]
		l.idle = l.idle[:last]
		return free, nil
	}
	select {
	case <-l.down: // serve no longer waits for new senders
		<-l.slots
		return nil, errDown
	default:
	}
	fresh := &sender{link: l, jobs: make(chan *job, 1)}
	l.senders.Add(1)
	go fresh.run()
	return fresh, nil
}

// release makes a sender available. It reports false if there are enough: then the sender must end.
func (l *link) release(free *sender) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.idle) >= l.keep {
		return false
	}
	l.idle = append(l.idle, free)
	<-l.slots
	return true
}

// sender is a channel that sends one message at a time. What the server says on it is about that message.
type sender struct {
	link    *link
	jobs    chan *job
	channel *amqp091.Channel // nil until the first job
	acks    chan amqp091.Confirmation
	returns chan amqp091.Return
	closed  chan *amqp091.Error
}

// run sends messages until the channel or the connection ends.
func (l *sender) run() {
	defer l.link.senders.Done()
	for {
		select {
		case j := <-l.jobs:
			err, usable := l.send(j)
			usable = usable && l.link.release(l)
			j.done <- err
			if !usable {
				if l.channel != nil {
					_ = l.channel.Close() // an error means that it was closed already
				}
				<-l.link.slots
				return
			}
		case <-l.link.down:
			return
		}
	}
}

// send sends one message and waits for the confirmation. usable reports whether the channel can be used again.
func (l *sender) send(j *job) (err error, usable bool) {
	if l.channel == nil {
		if err := l.open(); err != nil {
			return err, false
		}
	}
	if !j.hand() {
		return context.Canceled, true // nobody waits for the result
	}
	// A channel in confirm mode gets a return before the confirmation of the same message.
	if err := l.channel.Publish(j.to.exchange, j.to.key, true, false, j.msg); err != nil {
		return l.why(err), false
	}
	select {
	case ack, open := <-l.acks:
		switch {
		case !open:
			return l.why(errDown), false
		case !ack.Ack:
			return errNack, true
		}
		select {
		case r := <-l.returns:
			return &unroutable{code: r.ReplyCode, text: r.ReplyText}, true
		default:
			return nil, true
		}
	case <-j.abandoned:
		return context.Canceled, false // the confirmation may still come
	}
}

// open opens the channel.
func (l *sender) open() error {
	channel, err := l.link.conn.Channel()
	if err != nil {
		return err
	}
	l.channel = channel
	l.acks = channel.NotifyPublish(make(chan amqp091.Confirmation, 1))
	l.returns = channel.NotifyReturn(make(chan amqp091.Return, 1))
	l.closed = channel.NotifyClose(make(chan *amqp091.Error, 1))
	if err := channel.Confirm(false); err != nil {
		return l.why(err)
	}
	return nil
}

// why returns the reason that the server gave for closing the channel, or else err.
func (l *sender) why(err error) error {
	if !l.channel.IsClosed() {
		return err
	}
	select {
	case reason, given := <-l.closed:
		if given {
			return reason
		}
	case <-l.link.down:
	}
	return err
}

// frameOverhead is what a frame has in addition to its payload.
const frameOverhead = 8

// fits returns an error if the headers of a message are larger than the connection can carry. The server would close
// the connection.
func (l *link) fits(msg amqp091.Publishing) error {
	if limit := l.conn.Config.FrameSize; limit > 0 && headerSize(msg)+frameOverhead > limit {
		return fmt.Errorf("headers of %d bytes exceed the frame_max of the connection, %d bytes", headerSize(msg), limit)
	}
	return nil
}
