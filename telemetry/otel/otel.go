// Package otel gives an outbox the traces and metrics of OpenTelemetry, by the semantic conventions for messaging. A
// trace goes from the request that enqueues an event to its handler, and through a broker to the consumer, without a
// line in the handlers.
//
//	tel, err := otel.New(otel.Config{})
//	if err != nil {
//		return err
//	}
//	ctx = tel.Context(ctx) // at the root of the program: what is enqueued with it carries the trace
//	d, err := events.NewMiniChatDispatcher(pool, handlers, queue.Config{
//		Observer:   tel.Observer(),
//		Middleware: []outbox.Middleware{tel.Middleware}, // and BatchMiddleware for topics with batches
//		Publishers: map[string]publish.Publisher{"kafka": tel.Publisher("kafka", kafkaPublisher)},
//	})
//
// Consumers of a broker wrap the call of Consume with Telemetry.Consume.
//
// No span, metric or attribute has a payload, a dedupe key or a tenant. The description of a failed span is the text of
// the error, as in the log.
package otel

import (
	"cmp"
	"context"
	"fmt"

	otelapi "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/messagingconv"
	"go.opentelemetry.io/otel/trace"

	"github.com/outboxgen/outboxgen/outbox"
)

const (
	// scope is the name of the tracer and of the meter.
	scope = "github.com/outboxgen/outboxgen/telemetry/otel"
	// system is messaging.system of what the outbox does itself.
	system = "outboxgen"
)

// Config says where spans and metrics go. Its zero value uses the global providers of OpenTelemetry, as they are when
// New is called.
type Config struct {
	// TracerProvider makes the spans; nil means the global one.
	TracerProvider trace.TracerProvider
	// MeterProvider makes the metrics; nil means the global one.
	MeterProvider metric.MeterProvider
}

// Telemetry makes the spans and metrics of a program. One is enough for all its dispatchers, listeners, publishers and
// consumers. It is safe for concurrent use and has nothing to close.
type Telemetry struct {
	tracer   trace.Tracer
	observer *outbox.Observer
	recent   recent

	sent       messagingconv.ClientSentMessages
	consumed   messagingconv.ClientConsumedMessages
	operations messagingconv.ClientOperationDuration
	processing messagingconv.ProcessDuration
	settled    metric.Int64Counter
	dead       metric.Int64Counter
	lost       metric.Int64Counter
	duplicates metric.Int64Counter
	resting    metric.Int64UpDownCounter
}

// New returns a Telemetry. An error is that of the MeterProvider, which refuses an instrument.
func New(cfg Config) (*Telemetry, error) {
	cfg.TracerProvider = cmp.Or(cfg.TracerProvider, otelapi.GetTracerProvider())
	cfg.MeterProvider = cmp.Or(cfg.MeterProvider, otelapi.GetMeterProvider())
	t := &Telemetry{tracer: cfg.TracerProvider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL))}
	if err := t.instruments(cfg.MeterProvider.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL))); err != nil {
		return nil, fmt.Errorf("new telemetry: %w", err)
	}
	t.observer = &outbox.Observer{
		Enqueuing: t.enqueuing, Enqueued: t.enqueued, Claimed: t.claimed, Settled: t.onSettled, Lost: t.onLost,
		Dead: t.onDead, Resting: t.onResting, Resumed: t.onResumed,
	}
	return t, nil
}

func (t *Telemetry) instruments(m metric.Meter) error {
	// The boundaries that the semantic conventions advise.
	buckets := metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5,
		5, 7.5, 10)
	var errs [9]error
	t.sent, errs[0] = messagingconv.NewClientSentMessages(m)
	t.consumed, errs[1] = messagingconv.NewClientConsumedMessages(m)
	t.operations, errs[2] = messagingconv.NewClientOperationDuration(m, buckets)
	t.processing, errs[3] = messagingconv.NewProcessDuration(m, buckets)
	counter := func(name, description string) (metric.Int64Counter, error) {
		return m.Int64Counter(name, metric.WithUnit("{event}"), metric.WithDescription(description))
	}
	t.settled, errs[4] = counter("outboxgen.events.settled", "Events whose attempt has ended, by outboxgen.settlement.")
	t.dead, errs[5] = counter("outboxgen.events.dead", "Events that became dead letters.")
	t.lost, errs[6] = counter("outboxgen.events.lost", "Events whose lease was lost while they were handled.")
	t.duplicates, errs[7] = counter("outboxgen.events.duplicate",
		"Events that were not enqueued because their dedupe keys were taken.")
	t.resting, errs[8] = m.Int64UpDownCounter("outboxgen.targets.resting", metric.WithUnit("{target}"),
		metric.WithDescription(
			"Topics and destinations that are not claimed for a while because their target is unavailable."))
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Context returns a copy of ctx for the root of a program. Events that are enqueued with it or with a context derived
// from it carry the trace of the span that is active then, and each Enqueue gets a span "create" if there is an active
// one.
func (t *Telemetry) Context(ctx context.Context) context.Context {
	return outbox.ContextWithObserver(t.contextWithTrace(ctx), t.observer)
}

// contextWithTrace returns a copy of ctx whose enqueues carry the trace.
func (t *Telemetry) contextWithTrace(ctx context.Context) context.Context {
	return outbox.ContextWithTrace(ctx, func(ctx context.Context) (traceparent, tracestate string) {
		carrier := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(ctx, carrier)
		return carrier["traceparent"], carrier["tracestate"]
	})
}

// Observer returns the observer for the Config of a dispatcher or listener. To use another one too, join them with
// outbox.JoinObservers.
func (t *Telemetry) Observer() *outbox.Observer { return t.observer }

// creationOf returns the context in which an event with these headers was created. It is not valid if they have no
// trace.
func creationOf(headers map[string]string) trace.SpanContext {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier(headers))
	return trace.SpanContextFromContext(ctx)
}

// under returns ctx for a span in the trace of parent, or ctx itself if parent is not valid.
func under(ctx context.Context, parent trace.SpanContext) context.Context {
	if !parent.IsValid() {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, parent)
}

// links returns a link to each of the contexts that is valid.
func links(contexts ...trace.SpanContext) []trace.Link {
	var all []trace.Link
	for _, c := range contexts {
		if c.IsValid() {
			all = append(all, trace.Link{SpanContext: c})
		}
	}
	return all
}

// fail marks span as failed, unless err is nil.
func fail(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
		span.SetAttributes(semconv.ErrorType(err))
	}
}

// failure returns error.type for a metric, nothing for nil.
func failure(err error) []attribute.KeyValue {
	if err == nil {
		return nil
	}
	return []attribute.KeyValue{semconv.ErrorType(err)}
}

// operation returns the attributes that every span of an operation has.
func operation(system, name string, kind attribute.KeyValue) []attribute.KeyValue {
	return []attribute.KeyValue{semconv.MessagingSystemKey.String(system), semconv.MessagingOperationName(name), kind}
}

// conversation returns the attribute for the chain of an event, nothing for one that no other has caused.
func conversation(headers map[string]string) []attribute.KeyValue {
	if id := headers[outbox.CorrelationHeader]; id != "" {
		return []attribute.KeyValue{semconv.MessagingMessageConversationID(id)}
	}
	return nil
}

// destination returns the attribute for a topic.
func destination(namespace, topic string) attribute.KeyValue {
	return semconv.MessagingDestinationName(namespace + "/" + topic)
}

// group returns the consumer group of r, nothing for a dispatcher.
func group(r outbox.Runner) []attribute.KeyValue {
	if r.Listener == "" {
		return nil
	}
	return []attribute.KeyValue{semconv.MessagingConsumerGroupName(r.Listener)}
}
