package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/outboxgen/outboxgen/outbox"
)

// Bounds of a reply. Its body says nothing that the publisher needs: it is read for the sake of the connection.
const (
	maxReplyBytes = 64 << 10
	maxDrainTime  = time.Second
)

// mendError is trouble that lasts until somebody mends a configuration, here or there.
type mendError struct{ what string }

func (e *mendError) Error() string { return e.what }

// errTimeout is the cause of a request's end after Config.Timeout.
var errTimeout = errors.New("timeout")

// post sends a request and says what its outcome is to the event.
func (p *Publisher) post(ctx context.Context, e *endpoint, header http.Header, body []byte) error {
	requestCtx, cancel := context.WithTimeoutCause(ctx, p.config.Timeout, errTimeout)
	defer cancel()
	// Whether something of the request may have reached the endpoint. A connection that was kept open and is dead counts
	// for nothing: the transport tries another one.
	var wrote atomic.Bool
	// Whether there was a connection to write to: without one, surely nothing was sent, not even by an earlier try.
	var connected atomic.Bool
	requestCtx = httptrace.WithClientTrace(requestCtx, &httptrace.ClientTrace{
		GetConn: func(string) { wrote.Store(false) }, WroteHeaders: func() { wrote.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})

	request, err := http.NewRequestWithContext(requestCtx, http.MethodPost, e.url.String(), bytes.NewReader(body))
	if err != nil {
		return outbox.Permanent(errors.New("no request can be made of its URL"))
	}
	request.Header = header
	response, err := p.transport.RoundTrip(request) // not a Client: it would follow redirects, and put URLs into errors
	switch {
	case err == nil:
	case ctx.Err() != nil && !connected.Load():
		return notSent(ctx)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	if private, found := errors.AsType[*privateError](err); found && !wrote.Load() {
		// A name may lead astray for a moment, when it is moved or its name server starts.
		return p.private.Missing(e.name, &mendError{private.Error()})
	}
	p.private.Forget(e.name)
	switch {
	case err == nil:
	case wrote.Load():
		return p.unanswered(requestCtx, err)
	default:
		return p.unreachable(requestCtx, err)
	}
	// The verdict is in: what becomes of the body changes nothing.
	if response.StatusCode != http.StatusSwitchingProtocols { // its body is the connection, which heeds no context
		drained := time.AfterFunc(maxDrainTime, cancel)
		_, _ = io.CopyN(io.Discard, response.Body, maxReplyBytes)
		drained.Stop()
	}
	_ = response.Body.Close()
	return p.verdict(e, response)
}

// notSent is for an event of which nothing was sent when ctx ended.
func notSent(ctx context.Context) error {
	return fmt.Errorf("%w: %w", outbox.ErrNotSent, context.Cause(ctx))
}

// unreachable: there was no connection, so that no event is to blame. What stands in err comes from our side or from
// the TLS handshake.
func (p *Publisher) unreachable(ctx context.Context, err error) error {
	if mend, found := errors.AsType[*mendError](err); found {
		return outbox.Permanent(mend)
	}
	if errors.Is(context.Cause(ctx), errTimeout) {
		return outbox.Unavailable(fmt.Errorf("no connection within %s", p.config.Timeout))
	}
	if lookup, found := errors.AsType[*net.DNSError](err); found {
		return outbox.Unavailable(fmt.Errorf("look up host: %s", lookup.Err))
	}
	if late, found := errors.AsType[net.Error](err); found && late.Timeout() { // the transport was a little earlier
		return outbox.Unavailable(fmt.Errorf("no connection within %s", p.config.Timeout))
	}
	return outbox.Unavailable(fmt.Errorf("no connection: %w", err))
}

// unanswered: the request was sent and there is no reply. It may have been this event that the endpoint stumbled over,
// so it counts as an attempt. Only errors of the network are quoted: others may quote the endpoint, and it the event.
func (p *Publisher) unanswered(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errTimeout) {
		return fmt.Errorf("no reply within %s", p.config.Timeout)
	}
	if network, found := errors.AsType[*net.OpError](err); found {
		return fmt.Errorf("no reply: %w", network)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("no reply: the connection was closed")
	}
	return errors.New("no reply that HTTP can read")
}

// verdict says what a status means to the event. The table in docs/publishers.md is this function.
func (p *Publisher) verdict(e *endpoint, response *http.Response) error {
	status := response.StatusCode
	if status >= 200 && status < 300 {
		return nil
	}
	said := strings.TrimSpace("replied " + strconv.Itoa(status) + " " + http.StatusText(status))
	err := errors.New(said)
	delay, asked := retryAfter(response.Header, time.Now())
	delay = min(delay, p.config.MaxRetryAfter)
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		if asked {
			e.rest(delay)
			err = outbox.RetryAfter(delay, err)
		}
		return outbox.Unavailable(err) // said by what stands before the endpoint, or by it of itself as a whole
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong, http.StatusUnsupportedMediaType,
		http.StatusUnprocessableEntity, http.StatusRequestHeaderFieldsTooLarge:
		return outbox.Permanent(err) // said of the event
	case http.StatusGone:
		return outbox.Permanent(&mendError{said + ": the endpoint wants no more events"})
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed:
		err = &mendError{said}
	}
	if status >= 300 && status < 400 {
		err = &mendError{said + ": redirects are not followed"}
	}
	if asked {
		return outbox.RetryAfter(delay, err)
	}
	return err
}

// retryAfter reads how long to wait, in seconds or until a date (RFC 9110, section 10.2.3); a date is compared with the
// clock that wrote it, if the reply says what it shows. A time that is not in the future asks for nothing.
func retryAfter(header http.Header, now time.Time) (time.Duration, bool) {
	value := strings.TrimSpace(header.Get("Retry-After"))
	if date, err := http.ParseTime(value); err == nil {
		if sent, err := http.ParseTime(header.Get("Date")); err == nil {
			now = sent
		}
		delay := date.Sub(now)
		return delay, delay > 0
	}
	for _, c := range []byte(value) {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	const most = 1 << 31 // seconds: more than any endpoint can mean, less than a Duration can hold
	seconds, err := strconv.ParseUint(value, 10, 64)
	if errors.Is(err, strconv.ErrRange) || err == nil && seconds > most {
		seconds, err = most, nil
	}
	return time.Duration(seconds) * time.Second, err == nil && seconds > 0
}
