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

// Limits for a reply. The publisher does not need the body. It reads the body only so that the connection can be kept.
const (
	maxReplyBytes = 64 << 10
	maxDrainTime  = time.Second
)

// configError is an error that lasts until somebody fixes a configuration, here or at the endpoint.
type configError struct{ what string }

func (e *configError) Error() string { return e.what }

// errTimeout is the cause when a request takes longer than Config.Timeout.
var errTimeout = errors.New("timeout")

// post sends a request and returns the outcome for the event.
func (p *Publisher) post(ctx context.Context, e *endpoint, header http.Header, body []byte) error {
	requestCtx, cancel := context.WithTimeoutCause(ctx, e.timeout, errTimeout)
	defer cancel()
	// Whether a part of the request may have reached the endpoint. A kept connection that turns out to be closed does not
	// count: the transport tries another one.
	var wrote atomic.Bool
	// Whether there was a connection: without one nothing was sent, not even in an earlier try.
	var connected atomic.Bool
	requestCtx = httptrace.WithClientTrace(requestCtx, &httptrace.ClientTrace{
		GetConn: func(string) { wrote.Store(false) }, WroteHeaders: func() { wrote.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})

	request := e.request.WithContext(requestCtx)
	request.Header, request.ContentLength = header, int64(len(body))
	request.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	if len(body) == 0 {
		request.GetBody = func() (io.ReadCloser, error) { return http.NoBody, nil }
	}
	request.Body, _ = request.GetBody()
	response, err := p.transport.RoundTrip(request) // not a Client, which would follow redirects and put URLs into errors
	switch {
	case err == nil:
	case ctx.Err() != nil && !connected.Load():
		return notSent(ctx)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	var private *privateError
	if errors.As(err, &private) && !wrote.Load() {
		// A name may resolve wrongly for a moment, when it is moved or its name server starts.
		return p.private.Missing(e.name, &configError{private.Error()})
	}
	p.private.Forget(e.name)
	switch {
	case err == nil:
	case wrote.Load():
		return e.unanswered(requestCtx, err)
	default:
		return e.unreachable(requestCtx, err)
	}
	// The outcome depends only on the status and headers. Errors of the body do not change it.
	// After StatusSwitchingProtocols the body is the connection, which ignores the context.
	if response.Body != http.NoBody && response.StatusCode != http.StatusSwitchingProtocols {
		drained := time.AfterFunc(maxDrainTime, cancel)
		_, _ = io.CopyN(io.Discard, response.Body, maxReplyBytes)
		drained.Stop()
	}
	_ = response.Body.Close()
	return p.resultOf(e, response)
}

// notSent returns the error of an event of which nothing had been sent when ctx ended.
func notSent(ctx context.Context) error {
	return fmt.Errorf("%w: %w", outbox.ErrNotSent, context.Cause(ctx))
}

// unreachable returns the outcome if there was no connection, so that the event is not at fault. The text of err comes
// from our side or from the TLS handshake.
func (e *endpoint) unreachable(ctx context.Context, err error) error {
	var wrong *configError
	if errors.As(err, &wrong) {
		return outbox.Permanent(wrong)
	}
	if errors.Is(context.Cause(ctx), errTimeout) {
		return outbox.Unavailable(fmt.Errorf("no connection within %s", e.timeout))
	}
	var lookup *net.DNSError
	if errors.As(err, &lookup) {
		return outbox.Unavailable(fmt.Errorf("look up host: %s", lookup.Err))
	}
	var late net.Error
	if errors.As(err, &late) && late.Timeout() { // the transport noticed it a little earlier
		return outbox.Unavailable(fmt.Errorf("no connection within %s", e.timeout))
	}
	return outbox.Unavailable(fmt.Errorf("no connection: %w", err))
}

// unanswered returns the outcome if the request was sent and there is no reply. The endpoint may have failed because of
// this event, so it is an attempt. Only network errors are quoted: others may quote the endpoint, which may quote the
// event.
func (e *endpoint) unanswered(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errTimeout) {
		return fmt.Errorf("no reply within %s", e.timeout)
	}
	var network *net.OpError
	if errors.As(err, &network) {
		return fmt.Errorf("no reply: %w", network)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("no reply: the connection was closed")
	}
	return errors.New("no reply: the answer is not valid HTTP, or its headers are too large")
}

// resultOf returns the outcome for a status. The tables in the package comment and in docs/run/publishers.md describe
// it.
func (p *Publisher) resultOf(e *endpoint, response *http.Response) error {
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
		return outbox.Unavailable(err) // said by a proxy of the endpoint, or about the endpoint as a whole
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong,
		http.StatusUnsupportedMediaType,
		http.StatusUnprocessableEntity, http.StatusRequestHeaderFieldsTooLarge:
		return outbox.Permanent(err) // said about the event
	case http.StatusGone:
		return outbox.Permanent(&configError{said + ": the endpoint wants no more events"})
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed:
		err = &configError{said + ": " + e.advice(status)}
	}
	if status >= 300 && status < 400 {
		err = &configError{said + ": redirects are not followed"}
	}
	if asked {
		return outbox.RetryAfter(delay, err)
	}
	return err
}

// advice says what to compare when an endpoint refuses every event.
func (e *endpoint) advice(status int) string {
	switch {
	case status == http.StatusUnauthorized && len(e.keys) > 0:
		return "compare Secrets with those of the receiver, and the two clocks"
	case status == http.StatusUnauthorized:
		return "the endpoint expects a signature or credentials: set Secrets or Headers"
	case status == http.StatusForbidden:
		return "the log of the receiver may say why: it expects other credentials, or events in structured mode"
	case status == http.StatusNotFound:
		return "check the path of URL"
	}
	return "check the path of URL: it does not take POST"
}

// retryAfter reads Retry-After: seconds or a date (RFC 9110, section 10.2.3). A date is compared with the header Date,
// the clock of the endpoint, if there is one. It reports false for a time that is not in the future.
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
	const most = 1 << 31 // seconds: more than an endpoint can mean, and few enough for a Duration
	seconds, err := strconv.ParseUint(value, 10, 64)
	if errors.Is(err, strconv.ErrRange) || err == nil && seconds > most {
		seconds, err = most, nil
	}
	return time.Duration(seconds) * time.Second, err == nil && seconds > 0
}
