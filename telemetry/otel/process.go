package otel

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/outbox"
)

// Middleware is the outbox.Middleware for the Config of a dispatcher or listener. It gives each call of a handler a
// span "process" in the trace in which the event was enqueued, with a link to the span "receive" of its claim. What the
// handler enqueues carries this trace on.
func (t *Telemetry) Middleware(ctx context.Context, e outbox.Event, next func(context.Context) error) error {
	r, _ := outbox.RunnerFromContext(ctx)
	created, received := creationOf(e.Headers), t.recent.get(r, e.ID)
	about := append(group(r), destination(e.Namespace, e.Topic))
	ctx, span := t.tracer.Start(under(t.contextWithTrace(ctx), created), "process "+e.Namespace+"/"+e.Topic,
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(links(created, received.SpanContext)...),
		trace.WithAttributes(operation(system, "handle", semconv.MessagingOperationTypeProcess)...),
		trace.WithAttributes(about...), trace.WithAttributes(conversation(e.Headers)...),
		trace.WithAttributes(semconv.MessagingMessageID(e.ID.String()), attribute.Int("outboxgen.attempt", e.Attempt)))
	if span.SpanContext().IsValid() {
		t.recent.put(r, e.ID, seen{span.SpanContext(), true})
	}
	return t.process(ctx, span, system, "handle", about, next)
}

// BatchMiddleware is Middleware for handlers that get batches: it is the outbox.BatchMiddleware for the Config of a
// dispatcher. It gives each call a span "process", with links to the spans in which its events were enqueued and
// claimed. If one call has enqueued all of its events, the span is in its trace. A call whose BatchError names some
// events has failed, and the text of that error says how many.
func (t *Telemetry) BatchMiddleware(
	ctx context.Context, events []outbox.Event, next func(context.Context) error,
) error {
	r, _ := outbox.RunnerFromContext(ctx)
	var created, received []trace.Link
	claims := make(map[trace.SpanID]bool, 1)
	for _, e := range events {
		if c := creationOf(e.Headers); c.IsValid() {
			created = append(created, trace.Link{
				SpanContext: c, Attributes: []attribute.KeyValue{semconv.MessagingMessageID(e.ID.String())},
			})
		}
		if last := t.recent.get(r, e.ID); last.IsValid() && !claims[last.SpanID()] {
			claims[last.SpanID()] = true
			received = append(received, links(last.SpanContext)...)
		}
	}
	about := append(group(r), destination(events[0].Namespace, events[0].Topic))
	ctx, span := t.tracer.Start(under(t.contextWithTrace(ctx), common(created, len(events))),
		"process "+events[0].Namespace+"/"+events[0].Topic, trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithLinks(received...), trace.WithLinks(created...),
		trace.WithAttributes(operation(system, "handle", semconv.MessagingOperationTypeProcess)...),
		trace.WithAttributes(about...), trace.WithAttributes(semconv.MessagingBatchMessageCount(len(events))))
	if span.SpanContext().IsValid() {
		for _, e := range events {
			t.recent.put(r, e.ID, seen{span.SpanContext(), true})
		}
	}
	return t.process(ctx, span, system, "handle", about, next)
}

// Consume calls fn in a span "process" that continues the trace of m, a message that the consumer group received from a
// broker. broker is messaging.system, for example "kafka". fn usually calls Consume of a consume.Consumer, whose
// methods then run in the trace:
//
//	err := tel.Consume(ctx, "kafka", "billing", message, func(ctx context.Context) error {
//		_, err := consumer.Consume(ctx, pool, message)
//		return err
//	})
//
// The error is that of fn. fn is called also if m has no trace or cannot be read.
func (t *Telemetry) Consume(
	ctx context.Context, broker, consumerGroup string, m consume.Message, fn func(context.Context) error,
) error {
	received, _ := consume.Parse(m) // fn reports the error
	about := []attribute.KeyValue{semconv.MessagingConsumerGroupName(consumerGroup)}
	name := "process"
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer)}
	if received.Topic != "" {
		name += " " + received.Namespace + "/" + received.Topic
		about = append(about, destination(received.Namespace, received.Topic))
		opts = append(opts, trace.WithAttributes(semconv.MessagingMessageID(received.ID.String())))
	}
	created, ambient := creationOf(received.Headers), trace.SpanContextFromContext(ctx)
	opts = append(opts, trace.WithLinks(links(created, ambient)...),
		trace.WithAttributes(operation(broker, "consume", semconv.MessagingOperationTypeProcess)...),
		trace.WithAttributes(about...), trace.WithAttributes(conversation(received.Headers)...))
	ctx, span := t.tracer.Start(under(t.contextWithTrace(ctx), created), name, opts...)
	t.consumed.Add(ctx, 1, "consume", systemOf(broker), about...)
	return t.process(ctx, span, broker, "consume", about, fn)
}

// errNoReturn is the error of a function that panicked or ended its goroutine. The caller reports how.
var errNoReturn = errors.New("it did not return")

// process runs fn in span and records its duration.
func (t *Telemetry) process(
	ctx context.Context, span trace.Span, system, name string, about []attribute.KeyValue, fn func(context.Context) error,
) (err error) {
	began := time.Now()
	err = errNoReturn
	defer func() {
		fail(span, err)
		span.End()
		t.processing.Record(ctx, time.Since(began).Seconds(), name, systemOf(system), append(failure(err), about...)...)
	}()
	err = fn(ctx)
	return err
}
