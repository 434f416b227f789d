package nats_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/publish/internal/relaytest"
	"github.com/outboxgen/outboxgen/publish/nats"
)

// TestRelayOfALog relays 20,000 events while the server is killed, silent, and full. No event is lost, the order per key is
// kept, and each effect happens once.
func TestRelayOfALog(t *testing.T) {
	t.Parallel()
	relaytest.Log(t, newRelay(t), 20_000)
}

func TestRelayOfAQueue(t *testing.T) {
	t.Parallel()
	relaytest.Queue(t, newRelay(t), 2_000)
}

func newRelay(t *testing.T) relaytest.Broker {
	b := newBroker(t)
	b.stream.Duplicates = 100 * time.Millisecond // so that an event that is sent again may be stored twice
	b.configure(b.stream)
	f := &faulty{broker: b}
	p := b.publisher(t, func(cfg *nats.Config) { cfg.Timeout = time.Second })
	restart := func() {
		b.kill()
		b.start()
	}
	return relaytest.Broker{
		Publisher: p, Destination: subject, Consume: b.consume(),
		Faults: []func(){restart, f.swallow, f.refuse, f.fill, restart},
	}
}

// swallow makes the confirmations of some stored messages get lost.
func (f *faulty) swallow() { f.aside(nil) }

// refuse answers some messages with errors that may pass.
func (f *faulty) refuse() {
	f.aside([]byte(`{"error":{"code":400,"err_code":10060,"description":"expected stream does not match"}}`))
}

func (f *faulty) aside(answer []byte) {
	f.usurp(answer)
	// Wait until the usurper has got a message.
	require.Eventually(f.t, func() bool {
		n, err := f.usurper.Delivered()
		return err != nil || n > 0
	}, patience, 10*time.Millisecond)
	f.reinstate()
}

// fill makes the stream full for a while.
func (f *faulty) fill() {
	full := f.stream
	full.MaxMsgs, full.Discard = 1, jetstream.DiscardNew
	well := f.stream
	f.configure(full)
	<-time.After(200 * time.Millisecond)
	f.configure(well)
}

// consume reads the stream in order, from behind the last message that was applied.
func (b *broker) consume() func(ctx context.Context, apply func([]relaytest.Message) error) error {
	next, stream := uint64(1), b.stream.Name
	return func(ctx context.Context, apply func([]relaytest.Message) error) error {
		asking, cancel := context.WithTimeout(ctx, time.Second) // the server may be killed before it answers
		defer cancel()
		consumer, err := b.js.OrderedConsumer(asking, stream, jetstream.OrderedConsumerConfig{
			DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: next,
		})
		if err != nil {
			return settled(ctx)
		}
		messages, err := consumer.Messages()
		if err != nil {
			return settled(ctx)
		}
		defer messages.Stop()
		for {
			var got []relaytest.Message
			last, broken := next-1, false
			for len(got) < 300 {
				m, err := messages.Next(jetstream.NextMaxWait(50 * time.Millisecond))
				if err != nil {
					broken = !errors.Is(err, natsgo.ErrTimeout)
					break
				}
				meta, err := m.Metadata()
				if err != nil {
					return err
				}
				id, err := uuid.Parse(m.Headers().Get("ce-id"))
				if err != nil {
					return err
				}
				got, last = append(got, relaytest.Message{ID: id, Payload: m.Data()}), meta.Sequence.Stream
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := apply(got); err != nil {
				return err
			}
			next = last + 1
			if broken { // some errors are those of a consumer that gets no message any more
				return settled(ctx)
			}
		}
	}
}

// settled waits a moment for a server that is starting.
func settled(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-time.After(50 * time.Millisecond):
	}
	return nil
}
