package main

import (
	"context"
	"errors"
	"fmt"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/outboxgen/outboxgen/internal/testing/brokertest"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/amqp"
)

func relayAMQP(n int) workload {
	return relayBeside("relay-amqp", "RabbitMQ", "RabbitMQ is a server of its own with a durable queue. The loop publishes persistent messages on one channel "+
		"and waits for all confirmations; it would send an event although the one before with its key was refused.", n, startRabbitMQ)
}

const relayQueue = "bench-orders"

func startRabbitMQ(context.Context) (*relayBroker, error) {
	s, err := brokertest.StartRabbitMQ()
	if err != nil {
		return nil, err
	}
	conn, channel, err := channelOf(s)
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	stop := func() error { return errors.Join(conn.Close(), s.Stop()) }
	if _, err := channel.QueueDeclare(relayQueue, true, false, false, false, nil); err != nil {
		return nil, errors.Join(err, stop())
	}
	return &relayBroker{
		destination: "/queues/" + relayQueue,
		ours: func() (publish.Publisher, func(), error) {
			p, err := amqp.New(amqp.Config{URL: s.URL("guest"), Logger: quiet})
			if err != nil {
				return nil, nil, err
			}
			return p, p.Close, nil
		},
		hand: func(ctx context.Context, db *database) error {
			conn, channel, err := channelOf(s)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			if err := channel.Confirm(false); err != nil {
				return err
			}
			return relayLoop(ctx, db, amqpMessage, func(ctx context.Context, part []amqp091.Publishing) error { return sendAMQP(ctx, channel, part) })
		},
		arrived: func(context.Context) (int, error) {
			q, err := channel.QueueDeclarePassive(relayQueue, true, false, false, false, nil)
			return q.Messages, err
		},
		stop: stop,
	}, nil
}

func channelOf(s *brokertest.RabbitMQ) (*amqp091.Connection, *amqp091.Channel, error) {
	conn, err := amqp091.Dial(s.URL("guest"))
	if err != nil {
		return nil, nil, err
	}
	channel, err := conn.Channel()
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return conn, channel, nil
}

func amqpMessage(e *handEvent) amqp091.Publishing {
	h := amqp091.Table{}
	handHeaders(e, func(name, value string) { h["cloudEvents:"+name] = value })
	return amqp091.Publishing{
		ContentType: "application/json", DeliveryMode: amqp091.Persistent, MessageId: e.id.String(), Headers: h, Body: e.payload,
	}
}

func sendAMQP(ctx context.Context, channel *amqp091.Channel, part []amqp091.Publishing) error {
	confirmations := make([]*amqp091.DeferredConfirmation, len(part))
	for i, m := range part {
		var err error
		if confirmations[i], err = channel.PublishWithDeferredConfirmWithContext(ctx, "", relayQueue, true, false, m); err != nil {
			return err
		}
	}
	for _, c := range confirmations {
		if taken, err := c.WaitContext(ctx); err != nil || !taken {
			return fmt.Errorf("not confirmed: %w", errors.Join(err, ctx.Err()))
		}
	}
	return nil
}
