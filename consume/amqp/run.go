package amqp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
)

// Run consumes until ctx ends. Then it finishes the transactions that are under way, within the ShutdownTimeout,
// acknowledges what is settled, hands back what it holds, and returns nil. It returns an error if the queue does not
// exist, access is refused, no server answers at the start, or the database is not migrated: see the Err variables and
// receive.Stop. Nothing is lost then: the next Run continues from there.
func (r *Receiver) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return fmt.Errorf("run RabbitMQ receiver: %w", ErrRunning)
	}
	defer r.running.Store(false)
	began := time.Now()
	err := r.run(ctx)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("consume queue %s: %w", r.cfg.Queue, err)
		r.log.Error("RabbitMQ receiver has stopped", "ran", time.Since(began).Round(time.Millisecond), "error", err)
		return err
	}
	r.log.Info("RabbitMQ receiver has stopped", "ran", time.Since(began).Round(time.Millisecond))
	return nil
}

func (r *Receiver) run(outer context.Context) error {
	ctx, stop := context.WithCancelCause(outer)
	defer stop(nil)
	if err := r.receiver.Ready(ctx); err != nil {
		return err
	}
	c, err := r.connect(ctx, false)
	if err != nil {
		return err
	}
	defer func() { c.close() }()
	r.log.Info("RabbitMQ receiver has started", "servers", r.servers)
	var retrying sync.WaitGroup
	defer retrying.Wait()
	defer stop(nil)
	retrying.Go(func() {
		if err := r.receiver.Run(ctx); err != nil {
			stop(err)
		}
	})
	t := troubles{r: r}
	for {
		began := time.Now()
		err := r.lead(ctx, c, &t)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := t.judge(err, time.Since(began)); err != nil {
			return err
		}
		backoff.Sleep(ctx, t.pause/2+rand.N(t.pause))
		if c.IsClosed() && ctx.Err() == nil {
			c.close()
			next, err := r.connect(ctx, true)
			if err != nil {
				return err
			}
			c = next
			r.log.Info("amqp connection: connected again", "servers", r.servers)
		}
	}
}

// lead reads the queue for as long as this process has the lock and a channel.
func (r *Receiver) lead(outer context.Context, c *connection, t *troubles) error {
	ctx, stop := context.WithCancelCause(outer)
	defer stop(nil)
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer stop(nil)
	helpers.Go(func() {
		select {
		case <-c.down:
			stop(c.err)
		case <-ctx.Done():
		}
	})
	if _, err := c.inspect(r.cfg.Queue); err != nil { // also for a process that waits for the lock
		return err
	}
	l, err := r.lock(ctx, c)
	if err != nil {
		return err
	}
	defer l.Release()
	if err := r.alone(ctx, c); err != nil {
		return err
	}
	s, err := r.consume(c)
	if err != nil {
		return err
	}
	// Whatever was not acknowledged is back in the queue before the lock is released.
	defer c.closeChannel(s.channel)
	if err := r.shared(c, 1); err != nil {
		return err
	}
	t.reads()
	var others sync.WaitGroup
	others.Go(func() {
		if !l.Watch(ctx) {
			stop(errLockLost)
		}
	})
	others.Go(func() { stop(s.collect(ctx)) })
	others.Go(func() {
		if err := r.guard(ctx, c); err != nil {
			stop(err)
		}
	})
	if err = s.apply(ctx); err == nil {
		err = context.Cause(ctx)
	}
	stop(nil)
	others.Wait()
	return err
}

// consume starts a consumer of the queue on a channel of its own.
func (r *Receiver) consume(c *connection) (*session, error) {
	s, err := r.subscribe(c, !r.cfg.Unordered)
	if reply, is := errors.AsType[*amqp091.Error](err); is && inUse(reply) {
		// A classic queue with a single active consumer refuses an exclusive one, with the same words as one that is in use.
		if s, err = r.subscribe(c, false); err == nil {
			r.log.Debug("the queue does not take an exclusive consumer: it has x-single-active-consumer")
		}
	}
	return s, err
}

func (r *Receiver) subscribe(c *connection, exclusive bool) (*session, error) {
	timer := time.AfterFunc(askTimeout, func() { _ = c.raw.Close() })
	defer timer.Stop()
	channel, err := c.Channel()
	if err != nil {
		return nil, err
	}
	s := &session{
		r: r, channel: channel, closed: channel.NotifyClose(make(chan *amqp091.Error, 1)), changed: make(chan struct{}, 1),
	}
	if err = channel.Qos(r.cfg.Prefetch, 0, false); err == nil {
		s.deliveries, err = channel.Consume(r.cfg.Queue, "", false, exclusive, false, false, nil)
	}
	if err != nil {
		c.closeChannel(channel)
		return nil, err
	}
	return s, nil
}

// errShared is the error of a queue with another consumer.
var errShared = errors.New("the queue has another consumer: two of them break the order")

// guardInterval is how often the receiver looks for other consumers.
const guardInterval = 10 * time.Second

// guard looks for other consumers until ctx ends.
func (r *Receiver) guard(ctx context.Context, c *connection) error {
	for {
		backoff.Sleep(ctx, guardInterval)
		if ctx.Err() != nil {
			return nil
		}
		if err := r.shared(c, 1); err != nil {
			return err
		}
	}
}

// shared returns errShared if the queue has more consumers than there may be.
func (r *Receiver) shared(c *connection, most int) error {
	if r.cfg.Unordered {
		return nil
	}
	q, err := c.inspect(r.cfg.Queue)
	if err == nil && q.Consumers > most {
		err = errShared
	}
	return err
}

// alone waits until the queue has no consumer: a process that has lost the lock may still have messages.
func (r *Receiver) alone(ctx context.Context, c *connection) error {
	for began, said := time.Now(), false; ; {
		err := r.shared(c, 0)
		if !errors.Is(err, errShared) {
			return err
		}
		if !said && time.Since(began) > askTimeout {
			said = true
			r.log.Warn("the queue has another consumer: this process waits until it has gone, to keep the order")
		}
		backoff.Sleep(ctx, minPause)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// isMissing reports whether the server says that a queue does not exist. The same code can mean that the queue's node
// is down.
func isMissing(err error) bool {
	reply, is := errors.AsType[*amqp091.Error](err)
	return is && reply.Code == amqp091.NotFound && strings.Contains(reply.Reason, "no queue")
}

// inUse reports whether the server says that another consumer has the queue. The same code can mean that a right is
// missing.
func inUse(reply *amqp091.Error) bool {
	return reply.Code == amqp091.AccessRefused && strings.Contains(reply.Reason, "in exclusive use")
}

// fatalError ends Run.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }
func (e *fatalError) Unwrap() error { return e.err }

// troubles remembers what was wrong, to decide which trouble ends Run.
type troubles struct {
	r                *Receiver
	began            bool // the queue was read
	missing, refused time.Time
	pause            time.Duration // before the next attempt
}

// reads notes that the queue is read.
func (t *troubles) reads() {
	if !t.missing.IsZero() {
		t.r.log.Info("the queue exists again")
	}
	t.began, t.missing, t.refused = true, time.Time{}, time.Time{}
}

// judge returns the error of Run, or nil if the trouble may pass.
func (t *troubles) judge(err error, lasted time.Duration) error {
	if fatal, is := errors.AsType[*fatalError](err); is {
		return fatal.err
	}
	t.pause = min(2*t.pause, maxPause)
	if lasted > maxPause || t.pause == 0 {
		t.pause = minPause
	}
	reply, is := errors.AsType[*amqp091.Error](err)
	switch {
	case isMissing(err):
		t.refused = time.Time{}
		if t.missing.IsZero() {
			t.missing = time.Now()
			t.r.log.Warn("the queue does not exist: messages wait")
		}
		if time.Since(t.missing) > t.r.cfg.NoQueueTimeout {
			return fmt.Errorf("%w: create it, or correct Config.Queue: %w", ErrNoQueue, err)
		}
	case is && reply.Code == amqp091.AccessRefused && !inUse(reply):
		if t.refused.IsZero() {
			t.refused = time.Now()
		}
		if !t.began || time.Since(t.refused) > t.r.cfg.StartTimeout {
			return fmt.Errorf("ask %s: %w: %w: allow the user of Config.URL to read the queue", t.r.servers, ErrRefused, err)
		}
	case errors.Is(err, errLockLost):
		t.r.log.Warn("the lock of the queue was lost: the process takes it again, or another one does", "error", err)
	default:
		t.r.limit.Log(context.Background(), slog.LevelWarn, "amqp connection: the queue is not read for a moment", "servers",
			t.r.servers, "error", err)
	}
	return nil
}
