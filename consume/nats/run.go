package nats

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/postgres/advisory"
)

// Run consumes until ctx ends. Then it finishes the transactions that are under way, within the ShutdownTimeout,
// acknowledges what is settled, hands back what it holds, and returns nil. It returns an error if the stream does not
// exist, access is refused, no server answers at the start, the durable consumer is not suitable or is deleted, or the
// database is not migrated: see the Err variables and receive.Stop. Nothing is lost then: the next Run continues from
// there.
func (r *Receiver) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return fmt.Errorf("run NATS receiver: %w", ErrRunning)
	}
	defer r.running.Store(false)
	began := time.Now()
	err := r.run(ctx)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("consume %s/%s: %w", r.cfg.Stream, r.cfg.Durable, err)
		r.log.Error("NATS receiver has stopped", "ran", time.Since(began).Round(time.Millisecond), "error", err)
		return err
	}
	r.log.Info("NATS receiver has stopped", "ran", time.Since(began).Round(time.Millisecond))
	return nil
}

func (r *Receiver) run(outer context.Context) error {
	ctx, stop := context.WithCancelCause(outer)
	defer stop(nil)
	if err := r.receiver.Ready(ctx); err != nil {
		return err
	}
	c, err := connect(r.cfg, r.log, r.limit)
	if err != nil {
		return err
	}
	defer c.Close()
	js, err := c.jetStream(r.cfg)
	if err != nil {
		return err
	}
	consumer, err := r.begin(ctx, c, js)
	if err != nil {
		return err
	}
	r.log.Info("NATS receiver has started", "servers", c.servers, "pending", consumer.CachedInfo().NumPending)
	var retrying sync.WaitGroup
	defer retrying.Wait()
	defer stop(nil)
	retrying.Go(func() {
		if err := r.receiver.Run(ctx); err != nil {
			stop(err)
		}
	})
	for ctx.Err() == nil {
		if err := r.lead(ctx, c, js); err != nil && ctx.Err() == nil {
			if !errors.Is(err, errLockLost) {
				stop(err)
				return err
			}
			r.log.Warn("the lock of the durable consumer was lost: the process takes it again, or another one does",
				"error", err)
		}
	}
	return context.Cause(ctx)
}

// lead reads the durable consumer for as long as this process has the lock.
func (r *Receiver) lead(outer context.Context, c *connection, js jetstream.JetStream) error {
	consumer, err := r.again(outer, c, js)
	if err != nil {
		return err
	}
	ackWait := consumer.CachedInfo().Config.AckWait
	l, err := r.lock(outer, ackWait)
	if err != nil {
		return err
	}
	defer l.Release()
	ctx, stop := context.WithCancelCause(outer)
	defer stop(nil)
	s := &session{
		r: r, c: c, js: js, lock: l, ackWait: ackWait, window: newWindow(!r.cfg.Unordered),
	}
	var helpers sync.WaitGroup
	helpers.Go(func() {
		if !l.Watch(ctx) {
			stop(errLockLost)
		}
	})
	helpers.Go(func() {
		if err := s.collect(ctx); err != nil {
			stop(err)
		}
	})
	helpers.Go(func() {
		if err := s.renew(ctx); err != nil {
			stop(err)
		}
	})
	err = s.apply(ctx)
	if err != nil {
		stop(err)
	}
	stop(nil)
	helpers.Wait()
	s.handBack()
	switch {
	case err != nil:
		return err
	case outer.Err() != nil:
		return nil
	}
	return context.Cause(ctx)
}

// session is the time in which this process reads the durable consumer.
type session struct {
	r       *Receiver
	c       *connection
	js      jetstream.JetStream
	lock    *advisory.Lock
	ackWait time.Duration
	window  *window
}

// collect takes messages from the server into the window, until ctx ends.
func (s *session) collect(ctx context.Context) error {
	for ctx.Err() == nil {
		consumer, err := s.r.again(ctx, s.c, s.js)
		if err != nil {
			return err
		}
		if err := s.pull(ctx, consumer); errors.Is(err, jetstream.ErrConsumerDeleted) {
			if _, err := s.r.again(ctx, s.c, s.js); err != nil {
				return err
			}
			return ErrConsumerDeleted // and somebody has created it again: it starts at its beginning
		}
	}
	return nil
}

// pull takes messages until something is wrong.
func (s *session) pull(ctx context.Context, consumer jetstream.Consumer) error {
	messages, err := consumer.Messages(
		jetstream.PullMaxMessages(s.r.cfg.MaxPending), jetstream.PullExpiry(10*time.Second),
		jetstream.PullHeartbeat(2*time.Second),
	)
	if err != nil {
		return err
	}
	defer messages.Stop()
	connected, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go s.c.watch(connected, cancel)
	for {
		m, err := messages.Next(jetstream.NextContext(connected))
		if ctx.Err() != nil {
			s.drain(messages, m)
			return nil
		}
		if err != nil {
			return err
		}
		place, err := m.Metadata()
		if err != nil {
			return err
		}
		s.window.add(m, place)
	}
}

// drain takes the messages that have arrived at the client, so that handBack gives them back.
func (s *session) drain(messages jetstream.MessagesContext, m jetstream.Msg) {
	messages.Drain()
	for {
		if m != nil {
			if place, err := m.Metadata(); err == nil {
				s.window.add(m, place)
			}
		}
		var err error
		if m, err = messages.Next(jetstream.NextMaxWait(time.Second)); err != nil {
			return
		}
	}
}

// renew tells the server from time to time that the messages which are held are in progress, and repeats
// acknowledgements. It returns an error if the server refuses requests: at once if it has never taken an
// acknowledgement, else after a while.
func (s *session) renew(ctx context.Context) error {
	for {
		complains := s.pause(ctx, s.ackWait/4)
		if ctx.Err() != nil {
			return nil
		}
		limit := s.r.cfg.StartTimeout
		if !s.c.allowed.Load() {
			limit = 0
		}
		if err := s.c.refusedFor(limit, 2*s.ackWait+30*time.Second); err != nil {
			return fmt.Errorf("ask %s: %w", s.c.servers, err)
		}
		if complains {
			continue
		}
		for _, m := range s.window.pick(false) {
			if !s.lock.Holds() || m.InProgress() != nil {
				break
			}
		}
		s.acknowledge(s.window.pick(true))
	}
}

// pause waits until d or ctx ends, or until the server has refused something, which it reports.
func (s *session) pause(ctx context.Context, d time.Duration) (complains bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-s.c.complained:
		return true
	}
	return false
}

// ack is what JetStream takes as an acknowledgement.
var ack = []byte("+ACK")

// acknowledge acknowledges messages and forgets them when the server has got that.
func (s *session) acknowledge(ms []jetstream.Msg) {
	if len(ms) == 0 || !s.lock.Holds() {
		return
	}
	for _, m := range ms {
		if s.c.Publish(m.Reply(), ack) != nil { // not m.Ack, which refuses to repeat itself
			return
		}
	}
	if s.c.FlushTimeout(askTimeout) != nil {
		return
	}
	if !errors.Is(s.c.LastError(), nats.ErrPermissionViolation) {
		s.c.allowed.Store(true)
	}
	s.window.forget(ms)
}

// applied is how many messages are handed to the receiver at a time.
const applied = 1000

// apply settles messages in their order, until ctx ends.
func (s *session) apply(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := s.reassure(ctx); err != nil {
			return err
		}
		batch := s.window.take(applied)
		if len(batch) == 0 {
			s.window.wait(ctx, time.Second)
			continue
		}
		ms := make([]receive.Message, len(batch))
		errs := usercode.Each("Config.Key", len(batch), usercode.Limit, func(i int) (func(), error) {
			m := s.message(batch[i])
			return func() { ms[i] = m }, nil
		})
		if err := errtext.Join(errs...); err != nil {
			return err
		}
		outcomes, err := s.r.receiver.Receive(ctx, ms)
		var done []*held
		for i, outcome := range outcomes {
			if outcome != "" {
				done = append(done, batch[i])
			}
		}
		s.acknowledge(s.window.settled(done))
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *session) message(h *held) receive.Message {
	m := receive.Message{
		Message: consume.FromNATS(h.Headers(), h.Data()),
		Place:   fmt.Sprintf("nats:%s@%d", s.r.cfg.Stream, h.stream),
	}
	if e, err := consume.Parse(m.Message); err == nil {
		m.Key = s.r.cfg.Key(e.Event, h.Subject())
	}
	return m
}

// reassure finds out whether every delivered message is here. While one is missing it returns after a moment, and the
// window hands out nothing.
func (s *session) reassure(ctx context.Context) error {
	unsure, since, _, _ := s.window.doubts()
	if !unsure {
		return nil
	}
	s.acknowledge(s.window.pick(true)) // the server may have these acknowledgements, and count the messages no longer
	_, _, lost, holds := s.window.doubts()
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	consumer, err := s.js.Consumer(asking, s.r.cfg.Stream, s.r.cfg.Durable)
	if err != nil { // collect finds out why
		s.window.wait(ctx, 100*time.Millisecond)
		return nil
	}
	missing := consumer.CachedInfo().NumAckPending - holds
	// A held message that was deleted from the stream is no longer pending, so it could hide one that is missing. After
	// two AckWaits everything that is pending has been delivered again, so that nothing else can be missing.
	if missing == 0 && !lost || missing <= 0 && since > 2*s.ackWait {
		if s.window.sure(holds) {
			return nil
		}
	}
	if missing > 0 && since > 5*s.ackWait+s.r.cfg.StartTimeout {
		return fmt.Errorf("%w: %d messages are pending there, and it is not the lock's holder", ErrConsumerShared, missing)
	}
	s.window.wait(ctx, 50*time.Millisecond)
	return nil
}

// handBack acknowledges what is settled, and lets the server deliver the rest at once.
func (s *session) handBack() {
	s.acknowledge(s.window.pick(true))
	if !s.lock.Holds() {
		return
	}
	for _, m := range s.window.pick(false) {
		if m.Nak() != nil {
			return
		}
	}
	_ = s.c.FlushTimeout(askTimeout)
}
