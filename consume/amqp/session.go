package amqp

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
)

// errCancelled is the error of a consumer that the server has ended.
var errCancelled = errors.New("the server has ended the consumer: the queue was deleted, or it moves to another node")

// session is the time in which this process reads the queue on one channel. What it has not acknowledged at the end
// goes back into the queue.
type session struct {
	r          *Receiver
	channel    *amqp091.Channel
	closed     chan *amqp091.Error
	deliveries <-chan amqp091.Delivery
	changed    chan struct{} // has an element after a message was added

	mu      sync.Mutex
	waiting []amqp091.Delivery // Config.Prefetch at most, because the server sends no more
}

// collect takes messages from the client while others are applied, until ctx or the channel ends. It returns why the
// channel has ended.
func (s *session) collect(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case d, open := <-s.deliveries:
			if !open {
				select {
				case err, given := <-s.closed:
					if given {
						return err
					}
					return errLost
				default:
					return errCancelled
				}
			}
			s.mu.Lock()
			s.waiting = append(s.waiting, d)
			s.mu.Unlock()
			select {
			case s.changed <- struct{}{}:
			default:
			}
		}
	}
}

// take returns the next messages, without waiting for more. Half of what the process may hold is applied while the
// server sends the other half.
func (s *session) take() []amqp091.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(s.waiting), max(s.r.cfg.Prefetch/2, 1))
	batch := s.waiting[:n:n]
	if s.waiting = s.waiting[n:]; len(s.waiting) == 0 {
		s.waiting = nil
	}
	return batch
}

// apply settles messages in their order, until ctx ends. An error ends Run.
func (s *session) apply(ctx context.Context) error {
	for ctx.Err() == nil {
		batch := s.take()
		if len(batch) == 0 {
			select {
			case <-s.changed:
			case <-ctx.Done():
			}
			continue
		}
		ms := make([]receive.Message, len(batch))
		errs := usercode.Each("Config.Key", len(batch), usercode.Limit, func(i int) (func(), error) {
			m := s.message(batch[i])
			return func() { ms[i] = m }, nil
		})
		for i, d := range batch {
			if _, stream := d.Headers["x-stream-offset"]; stream {
				return &fatalError{ErrStream}
			}
			if errs[i] != nil {
				return &fatalError{errs[i]}
			}
		}
		outcomes, err := s.r.receiver.Receive(ctx, ms)
		s.acknowledge(batch, outcomes)
		if err != nil && ctx.Err() == nil {
			return &fatalError{err}
		}
	}
	return nil
}

// manyDeliveries is after how many deliveries of a message the log warns.
const manyDeliveries = 10

func (s *session) message(d amqp091.Delivery) receive.Message {
	m := receive.Message{Message: consume.FromAMQP(d.Headers, d.ContentType, d.Body), Place: "amqp:" + s.r.cfg.Queue}
	if d.MessageId != "" {
		m.Place += "#" + d.MessageId
	}
	if e, err := consume.Parse(m.Message); err == nil {
		m.Key = s.r.cfg.Key(e.Event, d.RoutingKey)
	}
	if count, is := d.Headers["x-delivery-count"].(int64); is && count >= manyDeliveries {
		s.r.limit.Log(context.Background(), slog.LevelWarn,
			"messages come again and again: a quorum queue drops them at its delivery-limit, so set its policy to -1", "place",
			m.Place, "deliveries", count)
	}
	return m
}

// acknowledge acknowledges the messages that have an outcome: those before the first one without at once, and the
// others one by one. Everything before the batch is acknowledged already. If the channel has ended, the messages come
// again as duplicates.
func (s *session) acknowledge(batch []amqp091.Delivery, outcomes []receive.Outcome) {
	n := 0
	for n < len(outcomes) && outcomes[n] != "" {
		n++
	}
	if n > 0 && s.channel.Ack(batch[n-1].DeliveryTag, true) != nil {
		return
	}
	for i := n; i < len(outcomes); i++ {
		if outcomes[i] != "" && s.channel.Ack(batch[i].DeliveryTag, false) != nil {
			return
		}
	}
}
