package nats

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxgen/outboxgen/outbox"
)

// Error codes of the server that are exceptions from the general rule. The server's errors.json lists all codes.
const (
	codeAccountLimits  jetstream.ErrorCode = 10002
	codeMessageTooLong jetstream.ErrorCode = jetstream.JSErrCodeStreamMessageExceedsMaximum
	codeHeaderTooLong  jetstream.ErrorCode = 10097
	codeSealed         jetstream.ErrorCode = 10109
	codeOtherStream    jetstream.ErrorCode = 10060
)

// resultOf returns the result of Publish for an event that was not confirmed.
func (p *Publisher) resultOf(ctx context.Context, subject string, err error) error {
	described := p.describe(subject, err)
	api, answered := errors.AsType[*jetstream.APIError](err)
	if errors.Is(err, jetstream.ErrNoStreamResponse) {
		return p.noStream(ctx, subject, described)
	}
	p.streams.Forget(subject)
	switch {
	case !p.conn.IsConnected():
		return outbox.BrokerUnavailable(described)
	case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrBadHeaderMsg):
		return outbox.Permanent(described)
	case errors.Is(err, jetstream.ErrInvalidJSAck):
		return described
	case !answered:
		return outbox.Unavailable(described)
	}
	switch {
	case api.ErrorCode == codeMessageTooLong, api.ErrorCode == codeHeaderTooLong:
		return outbox.Permanent(described)
	case api.Code >= 500, api.ErrorCode == codeAccountLimits, api.ErrorCode == codeSealed,
		api.ErrorCode == codeOtherStream && p.cfg.Stream != "": // the configuration must be fixed, for all events
		return outbox.Unavailable(described)
	}
	return described
}

// noStream distinguishes a subject without a stream from a stream that does not answer.
func (p *Publisher) noStream(ctx context.Context, subject string, err error) error {
	asking, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	stream, problem := p.js.StreamNameBySubject(asking, subject)
	switch {
	case errors.Is(problem, jetstream.ErrStreamNotFound):
		return p.streams.Missing(subject, p.describe(subject, errNoStream{}))
	case ctx.Err() == nil:
		p.streams.Forget(subject)
	}
	switch {
	case problem != nil && !p.conn.IsConnected():
		return outbox.BrokerUnavailable(fmt.Errorf("%w; ask for its stream: %w", err, problem))
	case problem != nil:
		return outbox.Unavailable(fmt.Errorf("%w; ask for its stream: %w", err, problem))
	}
	return outbox.Unavailable(fmt.Errorf("%w: stream %s", err, stream))
}

// errNoStream is jetstream.ErrNoStreamResponse with a text that says what to do.
type errNoStream struct{}

func (errNoStream) Error() string { return "no stream has this subject: create one" }
func (errNoStream) Unwrap() error { return jetstream.ErrNoStreamResponse }

// describe adds the subject, the server and the last error of the connection to an error of NATS or the client.
func (p *Publisher) describe(subject string, err error) error {
	err = fmt.Errorf("publish to %s at %s: %w", subject, p.conn.address(), err)
	if connErr := p.conn.connErr.Load(); connErr != nil && !errors.Is(err, *connErr) {
		return fmt.Errorf("%w: %w", err, *connErr)
	}
	if sent := p.conn.serverError.Load(); sent != nil && strings.Contains((*sent).Error(), `"`+subject+`"`) {
		return fmt.Errorf("%w: %w", err, *sent)
	}
	return err
}
