package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
)

// begin returns the durable consumer, which it creates if the stream has none. It waits up to Config.StartTimeout for
// what is missing, except for credentials, rights and TLS.
func (r *Receiver) begin(ctx context.Context, c *connection, js jetstream.JetStream) (jetstream.Consumer, error) {
	return r.insist(ctx, c, false, func(ctx context.Context) (jetstream.Consumer, error) {
		consumer, err := js.Consumer(ctx, r.cfg.Stream, r.cfg.Durable)
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			consumer, err = js.CreateConsumer(ctx, r.cfg.Stream, r.wanted())
			if errors.Is(err, jetstream.ErrConsumerExists) || errors.Is(err, jetstream.ErrConsumerNameAlreadyInUse) {
				consumer, err = js.Consumer(ctx, r.cfg.Stream, r.cfg.Durable) // another process was faster
			}
		}
		return consumer, err
	})
}

// again returns the durable consumer after a trouble. It waits for servers without a limit, and up to
// Config.StartTimeout for a stream, credentials, a right or TLS. It does not create the consumer: its position is gone,
// and the messages of the stream would come again.
func (r *Receiver) again(ctx context.Context, c *connection, js jetstream.JetStream) (jetstream.Consumer, error) {
	return r.insist(ctx, c, true, func(ctx context.Context) (jetstream.Consumer, error) {
		return js.Consumer(ctx, r.cfg.Stream, r.cfg.Durable)
	})
}

// insist asks until there is an answer. With patient, it waits for servers without a limit.
func (r *Receiver) insist(
	ctx context.Context, c *connection, patient bool, ask func(context.Context) (jetstream.Consumer, error),
) (jetstream.Consumer, error) {
	deadline := time.Now().Add(r.cfg.StartTimeout)
	var gone time.Time // until when the consumer may be missing: a server that starts may not know it yet
	for {
		asked := time.Now()
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		forget := c.onRefusal(cancel)
		err := c.await(asking)
		var consumer jetstream.Consumer
		if err == nil {
			consumer, err = ask(asking)
		}
		forget()
		cancel()
		switch {
		case err == nil:
			if err := r.check(consumer.CachedInfo().Config); err != nil {
				return nil, err
			}
			return consumer, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
		err = c.explain(err, asked)
		missing := errors.Is(err, jetstream.ErrConsumerNotFound)
		if missing && gone.IsZero() {
			gone = time.Now().Add(min(r.cfg.StartTimeout, askTimeout))
		}
		switch {
		case missing && time.Now().After(gone):
			return nil, ErrConsumerDeleted
		case !patient && (errors.Is(err, ErrRefused) || errors.Is(err, ErrTLS)):
			return nil, fmt.Errorf("ask %s: %w", c.servers, err)
		case errors.Is(err, ErrUnreachable) && patient:
			deadline = time.Now().Add(r.cfg.StartTimeout)
		case !missing && time.Now().After(deadline): // a consumer that is missing has a time of its own, which ends later
			return nil, fmt.Errorf("ask %s: %w", c.servers, err)
		}
		backoff.Sleep(ctx, 250*time.Millisecond)
	}
}

// wanted is the configuration of a new durable consumer.
func (r *Receiver) wanted() jetstream.ConsumerConfig {
	cfg := jetstream.ConsumerConfig{
		Durable: r.cfg.Durable, AckPolicy: jetstream.AckExplicitPolicy, AckWait: r.cfg.AckWait, MaxDeliver: -1,
		MaxAckPending: r.cfg.MaxPending, DeliverPolicy: jetstream.DeliverAllPolicy,
		ReplayPolicy: jetstream.ReplayInstantPolicy,
	}
	if r.cfg.FromEnd {
		cfg.DeliverPolicy = jetstream.DeliverNewPolicy
	}
	switch len(r.cfg.Subjects) {
	case 0:
	case 1:
		cfg.FilterSubject = r.cfg.Subjects[0]
	default:
		cfg.FilterSubjects = r.cfg.Subjects
	}
	return cfg
}

// check refuses a durable consumer with which messages could get lost or out of order.
func (r *Receiver) check(is jetstream.ConsumerConfig) error {
	subjects := slices.Clone(is.FilterSubjects)
	if is.FilterSubject != "" {
		subjects = append(subjects, is.FilterSubject)
	}
	wanted := slices.Clone(r.cfg.Subjects)
	slices.Sort(subjects)
	slices.Sort(wanted)
	var fault string
	switch {
	case is.AckPolicy != jetstream.AckExplicitPolicy:
		fault = "its acknowledgement policy is " + is.AckPolicy.String() + ": it must be explicit"
	case is.MaxDeliver > 0:
		fault = fmt.Sprintf("it gives a message up after %d deliveries (max_deliver): it must be unlimited, the receiver "+
			"counts attempts itself", is.MaxDeliver)
	case len(is.BackOff) > 0:
		fault = "it has its own delays (backoff): it must have none, the receiver has its own"
	case is.AckWait < time.Second:
		fault = fmt.Sprintf("its ack_wait %s is below 1s", is.AckWait)
	case is.HeadersOnly:
		fault = "it delivers no bodies (headers_only)"
	case len(is.PriorityGroups) > 0:
		fault = "it has priority groups: the receiver has its own lock"
	case !slices.Equal(subjects, wanted):
		fault = fmt.Sprintf("its subjects are %s, and Config.Subjects is %s", listed(subjects), listed(wanted))
	default:
		return nil
	}
	return fmt.Errorf("%w: %s. Change it, or use another name in Config.Durable", ErrBadConsumer, fault)
}

func listed(subjects []string) string {
	if len(subjects) == 0 {
		return "empty (all)"
	}
	return strings.Join(subjects, ", ")
}
