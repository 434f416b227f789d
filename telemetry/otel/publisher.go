package otel

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// Publisher returns a Publisher that gives each call of p a span "send", with a link to the span in which each event
// was enqueued. If one call has enqueued all events, the span is in its trace. Spans that the client of the broker
// makes are in the span "send". broker is messaging.system, for example "kafka" or "nats".
//
// The events reach the broker with the traceparent of their enqueue, so that the consumer continues that trace.
func (t *Telemetry) Publisher(broker string, p publish.Publisher) publish.Publisher {
	return &publisher{t, broker, p}
}

type publisher struct {
	*Telemetry
	broker string
	next   publish.Publisher
}

// Publish implements publish.Publisher.
func (p *publisher) Publish(ctx context.Context, events []publish.Outgoing) []error {
	var created []trace.Link
	counts := make(map[string]int, 1) // by destination
	for _, e := range events {
		counts[e.Destination]++
		if c := creationOf(e.Headers); c.IsValid() {
			created = append(created, trace.Link{
				SpanContext: c, Attributes: []attribute.KeyValue{semconv.MessagingMessageID(e.ID.String())},
			})
		}
	}
	name, about := "send", []attribute.KeyValue{semconv.MessagingBatchMessageCount(len(events))}
	if len(counts) == 1 {
		name += " " + events[0].Destination
		about = append(about, semconv.MessagingDestinationName(events[0].Destination))
	}
	ctx, span := p.tracer.Start(under(ctx, common(created, len(events))), name, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithLinks(created...),
		trace.WithAttributes(operation(p.broker, "publish", semconv.MessagingOperationTypeSend)...),
		trace.WithAttributes(about...))
	began, returned := time.Now(), false
	var errs []error
	defer func() {
		p.sentTo(ctx, span, events, errs, returned, time.Since(began))
	}()
	errs = p.next.Publish(ctx, events)
	returned = true
	return errs
}

// sentTo records what has become of events, and ends span.
func (p *publisher) sentTo(
	ctx context.Context, span trace.Span, events []publish.Outgoing, errs []error, returned bool, took time.Duration,
) {
	defer span.End()
	type sent struct {
		destination string
		failure     attribute.KeyValue
	}
	counts := make(map[sent]int64, 1)
	var worst error
	for i, e := range events {
		var err error
		switch {
		case !returned || len(errs) != len(events):
			err = errNoReturn
		default:
			err = errs[i]
		}
		if errors.Is(err, outbox.ErrNotSent) || errors.Is(err, outbox.ErrBehind) {
			continue
		}
		key := sent{destination: e.Destination}
		if err != nil {
			worst, key.failure = err, semconv.ErrorType(err)
		}
		counts[key]++
	}
	destinations := make(map[string]bool, 1)
	for key, n := range counts {
		about := []attribute.KeyValue{semconv.MessagingDestinationName(key.destination)}
		if key.failure.Valid() {
			about = append(about, key.failure)
		}
		p.sent.Add(ctx, n, "publish", systemOf(p.broker), about...)
		destinations[key.destination] = true
	}
	about := append(failure(worst), semconv.MessagingOperationTypeSend)
	if len(destinations) == 1 {
		for name := range destinations {
			about = append(about, semconv.MessagingDestinationName(name))
		}
	}
	p.operations.Record(ctx, took.Seconds(), "publish", systemOf(p.broker), about...)
	if worst != nil {
		span.SetStatus(codes.Error, worst.Error())
		span.SetAttributes(semconv.ErrorType(worst))
	}
}

// common returns the context of n events that were all created in one span, or one that is not valid.
func common(created []trace.Link, n int) trace.SpanContext {
	if n == 0 || len(created) != n {
		return trace.SpanContext{}
	}
	for _, c := range created[1:] {
		if !c.SpanContext.Equal(created[0].SpanContext) {
			return trace.SpanContext{}
		}
	}
	return created[0].SpanContext
}
