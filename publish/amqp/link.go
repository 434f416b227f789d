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

// maxIdle is how many channels are kept for later.
const maxIdle = 64

// link is a connection to a server, with channels to send messages on.
type link struct {
	conn    *amqp091.Connection
	raw     net.Conn
	closed  chan *amqp091.Error
	blocks  chan amqp091.Blocking
	blocked atomic.Pointer[string] // why the server takes no messages; nil while it does
	down    chan struct{}          // closed when the connection has ended
	slots   chan struct{}          // has an element for each channel that may be used in addition
	calls   sync.WaitGroup         // that open and close channels

	mu    sync.Mutex
	idle  []*channel
	ended bool // no call may begin
}

func newLink(conn *amqp091.Connection, raw net.Conn) *link {
	limit := maxChannels
	if max := int(conn.Config.ChannelMax); max > 0 && max < limit {
		limit = max
	}
	l := &link{
		conn: conn, raw: raw, down: make(chan struct{}), slots: make(chan struct{}, limit),
		closed: conn.NotifyClose(make(chan *amqp091.Error, 1)), blocks: conn.NotifyBlocked(make(chan amqp091.Blocking, 8)),
	}
	for range limit {
		l.slots <- struct{}{}
	}
	return l
}

// serve waits until the connection or ctx ends. It returns after all channels have ended, with the error of the
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
	l.ended = true
	close(l.down)
	l.mu.Unlock()
	l.calls.Wait()
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

// channel is a channel in confirm mode. The server returns a message before it confirms it.
type channel struct {
	*amqp091.Channel
	acks    chan amqp091.Confirmation // in the order of the messages
	returns chan amqp091.Return
	closed  chan *amqp091.Error
}

// acquire returns a channel that nobody else uses. The caller must release it. An error of ctx or closing, errDown or
// errNoChannel means that one of the other arguments or the connection has ended. Any other is the server's.
func (l *link) acquire(ctx, closing context.Context, timeout <-chan time.Time) (*channel, error) {
	if _, err := await(l, ctx, closing, timeout, l.slots); err != nil {
		return nil, err
	}
	if free := l.takeIdle(); free != nil {
		return free, nil
	}
	opened, gone := make(chan opening), make(chan struct{})
	defer close(gone)
	if !l.start(func() {
		o := l.open()
		select {
		case opened <- o:
		case <-gone: // another may use it
			l.release(o.channel, true)
		}
	}) {
		return nil, errDown
	}
	o, err := await(l, ctx, closing, timeout, opened)
	if err == nil && o.err != nil {
		l.release(o.channel, false)
		return nil, o.err
	}
	return o.channel, err
}

// await waits for a value of c, or until something else ends.
func await[T any](l *link, ctx, closing context.Context, timeout <-chan time.Time, c <-chan T) (got T, err error) {
	select {
	case got = <-c:
		return got, nil
	case <-ctx.Done():
		return got, ctx.Err()
	case <-closing.Done():
		return got, closing.Err()
	case <-l.down:
		return got, errDown
	case <-timeout:
		return got, errNoChannel
	}
}

// takeIdle returns a channel that was released, or nil.
func (l *link) takeIdle() *channel {
	l.mu.Lock()
	defer l.mu.Unlock()
	for last := len(l.idle) - 1; last >= 0; last-- {
		free := l.idle[last]
		if l.idle = l.idle[:last]; !free.IsClosed() {
			return free
		}
	}
	return nil
}

// start runs f in a goroutine that serve waits for. It reports false if the connection has ended.
func (l *link) start(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.calls.Go(f)
	return true
}

// release makes room for another channel. If the channel is usable, it is kept for others, or else closed. It may be nil.
func (l *link) release(c *channel, usable bool) {
	l.mu.Lock()
	keep := usable && c != nil && len(l.idle) < maxIdle && !c.IsClosed()
	if keep {
		l.idle = append(l.idle, c)
	}
	l.mu.Unlock()
	if keep || c == nil || c.IsClosed() {
		l.slots <- struct{}{}
		return
	}
	l.start(func() {
		_ = c.Close() // an error means that it was closed meanwhile
		l.slots <- struct{}{}
	})
}

// opening is the result of open.
type opening struct {
	channel *channel // nil if there is none
	err     error
}

// open opens a channel.
func (l *link) open() opening {
	raw, err := l.conn.Channel()
	if err != nil {
		return opening{err: err}
	}
	c := &channel{
		Channel: raw,
		// A full channel of acks would block the client's reader while it holds a lock that Publish needs.
		acks:    raw.NotifyPublish(make(chan amqp091.Confirmation, maxConcurrency)),
		returns: raw.NotifyReturn(make(chan amqp091.Return, 16)),
		closed:  raw.NotifyClose(make(chan *amqp091.Error, 1)),
	}
	if err := raw.Confirm(false); err != nil {
		return opening{c, l.why(c, err)}
	}
	return opening{channel: c}
}

// why returns the reason that the server gave for closing the channel, or else err.
func (l *link) why(c *channel, err error) error {
	if !c.IsClosed() {
		return err
	}
	select {
	case reason, given := <-c.closed:
		if given {
			return reason
		}
	case <-l.down:
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
