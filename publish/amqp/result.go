package amqp

import (
	"errors"
	"fmt"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/outboxgen/outboxgen/internal/broker/amqpurl"
	"github.com/outboxgen/outboxgen/outbox"
)

// errNotConnected is the error of sending without a connection.
var errNotConnected = errors.New("not connected")

// errNack is the error of a message that a queue has refused.
var errNack = errors.New("refused with a nack: a queue is full and has overflow reject-publish, or it failed")

// unroutable is the error of a message that RabbitMQ has returned, because no queue gets it.
type unroutable struct {
	code uint16
	text string
}

// Error has the server's code and text.
func (u *unroutable) Error() string { return fmt.Sprintf("returned: %d %s", u.code, u.text) }

// ofDestination reports whether an error of a channel is about its destination, and not about one message.
func ofDestination(err error) bool {
	reason, answered := errors.AsType[*amqp091.Error](err)
	return answered && (reason.Code == amqp091.NotFound || reason.Code == amqp091.AccessRefused)
}

// resultOf returns the result of Publish for an event that was not confirmed.
func (p *Publisher) resultOf(l *link, destination string, to address, err error) error {
	described := p.describe(destination, err)
	reason, answered := errors.AsType[*amqp091.Error](err)
	if _, returned := errors.AsType[*unroutable](err); returned {
		what := "no queue is bound to " + to.String() + ": bind one"
		if to.exchange == "" {
			what = "there is no " + to.String() + ": declare it"
		}
		return p.routes.Missing(destination, p.describe(destination, fmt.Errorf("%s: %w", what, err)))
	}
	if answered && reason.Code == amqp091.NotFound && !l.conn.IsClosed() {
		return p.routes.Missing(destination,
			p.describe(destination, fmt.Errorf("there is no exchange %s: declare it: %w", to.exchange, err)))
	}
	p.routes.Forget(destination)
	switch {
	case l.conn.IsClosed():
		return outbox.BrokerUnavailable(described)
	case errors.Is(err, errNack):
		return described
	case !answered, errors.Is(err, amqp091.ErrChannelMax):
		return outbox.Unavailable(described)
	}
	switch reason.Code {
	case amqp091.PreconditionFailed, amqp091.ContentTooLarge:
		return outbox.Permanent(described)
	case amqp091.AccessRefused, amqp091.ResourceError, amqp091.ChannelError:
		return outbox.Unavailable(described)
	}
	return described
}

// describe adds the destination, the server and the last error of the connection to an error.
func (p *Publisher) describe(destination string, err error) error {
	at := p.conn.servers
	if l := p.conn.current(); l != nil {
		at = l.raw.RemoteAddr().String()
	}
	err = fmt.Errorf("publish to %s at %s: %w", destination, at, err)
	if connErr := p.conn.connErr.Load(); connErr != nil && !errors.Is(err, *connErr) {
		return fmt.Errorf("%w: %w", err, *connErr)
	}
	return err
}

// checkURLs returns what is wrong with a list of servers.
func checkURLs(list string) error {
	if err := amqpurl.Check(list); err != nil {
		return err
	}
	for _, one := range amqpurl.Servers(list) {
		if _, err := amqp091.ParseURI(one); err != nil {
			return errors.New("has a parameter that is not valid")
		}
	}
	return nil
}
