package otel

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/messagingconv"
	"go.opentelemetry.io/otel/trace"

	"github.com/outboxgen/outboxgen/outbox"
)

// createKey is where the context of an enqueue keeps its span.
type createKey struct{}

// enqueuing starts the span of an enqueue, which the events carry. Without an active span there is none, because it
// would be the root of a separate trace. If the cause is of another trace, as in a handler of batches, the span has a link
// to where the cause was enqueued.
func (t *Telemetry) enqueuing(ctx context.Context, namespace, topic string, _ int) context.Context {
	active := trace.SpanContextFromContext(ctx)
	if !active.IsValid() {
		return ctx
	}
	var from []trace.Link
	if e, ok := outbox.CauseFromContext(ctx); ok {
		if created := creationOf(e.Headers); created.TraceID() != active.TraceID() {
			from = links(created)
		}
	}
	ctx, span := t.tracer.Start(ctx, "create "+namespace+"/"+topic, trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithLinks(from...), trace.WithAttributes(operation(system, "enqueue", semconv.MessagingOperationTypeCreate)...),
		trace.WithAttributes(destination(namespace, topic)))
	return context.WithValue(ctx, createKey{}, span)
}

func (t *Telemetry) enqueued(ctx context.Context, e outbox.Enqueued) {
	to := destination(e.Namespace, e.Topic)
	about := append(failure(e.Err), to)
	t.operations.Record(ctx, e.Took.Seconds(), "enqueue", system, append(about, semconv.MessagingOperationTypeCreate)...)
	if n := e.Events; n > 0 {
		t.sent.Add(ctx, int64(n), "enqueue", system, about...)
	}
	if n := e.Duplicates; n > 0 {
		t.duplicates.Add(ctx, int64(n), metric.WithAttributes(to))
	}
	if span, ok := ctx.Value(createKey{}).(trace.Span); ok {
		span.SetAttributes(semconv.MessagingBatchMessageCount(e.Events + e.Duplicates))
		if e.Duplicates > 0 {
			span.SetAttributes(attribute.Int("outboxgen.duplicates", e.Duplicates))
		}
		fail(span, e.Err)
		span.End()
	}
}

// claimed records a claim, and makes its span if there were events. A poll that finds nothing makes no span.
func (t *Telemetry) claimed(r outbox.Runner, events []outbox.Event, took time.Duration) {
	ctx := context.Background()
	from := r.Namespace
	if r.Listener != "" {
		from = r.Listener
	}
	t.operations.Record(ctx, took.Seconds(), "claim", system, append(group(r),
		semconv.MessagingOperationTypeReceive, attribute.String("outboxgen.runner", from))...)
	if len(events) == 0 {
		return
	}
	counts := make(map[[2]string]int64, 1)
	for _, e := range events {
		counts[[2]string{e.Namespace, e.Topic}]++
	}
	about := append(group(r), semconv.MessagingBatchMessageCount(len(events)))
	for topic, n := range counts {
		to := destination(topic[0], topic[1])
		t.consumed.Add(ctx, n, "claim", system, append(group(r), to)...)
		if len(counts) == 1 {
			from, about = topic[0]+"/"+topic[1], append(about, to)
		}
	}
	now := time.Now()
	created := make([]trace.Link, 0, len(events))
	for _, e := range events {
		created = append(created, links(creationOf(e.Headers))...)
	}
	_, span := t.tracer.Start(ctx, "receive "+from, trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindClient),
		trace.WithTimestamp(now.Add(-took)), trace.WithLinks(created...),
		trace.WithAttributes(operation(system, "claim", semconv.MessagingOperationTypeReceive)...),
		trace.WithAttributes(about...))
	span.End(trace.WithTimestamp(now))
	if !span.SpanContext().IsValid() {
		return
	}
	for _, e := range events {
		t.recent.put(r, e.ID, seen{span.SpanContext(), false})
	}
}

// settleNames are the names of the operations in which an attempt ends.
var settleNames = map[outbox.Settlement]string{
	outbox.SettledDelivered: "ack", outbox.SettledRetried: "nack", outbox.SettledDead: "nack",
	outbox.SettledReleased: "release", outbox.SettledParked: "nack",
}

// onSettled makes the span of a settlement, which has no duration, because events are settled in batches.
func (t *Telemetry) onSettled(r outbox.Runner, e outbox.Event, s outbox.Settlement) {
	to, how := destination(e.Namespace, e.Topic), attribute.String("outboxgen.settlement", string(s))
	ctx := context.Background()
	t.settled.Add(ctx, 1, metric.WithAttributes(append(group(r), to, how)...))
	created, last := creationOf(e.Headers), t.recent.take(r, e.ID)
	parent := created
	if last.handled || !created.IsValid() {
		parent = last.SpanContext
	}
	if !parent.IsValid() {
		return // nothing is known of the event
	}
	name := settleNames[s]
	_, span := t.tracer.Start(under(ctx, parent), "settle "+e.Namespace+"/"+e.Topic,
		trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(operation(system, name, semconv.MessagingOperationTypeSettle)...),
		trace.WithAttributes(group(r)...),
		trace.WithAttributes(to, how, semconv.MessagingMessageID(e.ID.String())),
		trace.WithLinks(links(created, last.SpanContext)...))
	if s == outbox.SettledDead {
		span.SetStatus(codes.Error, "the event is a dead letter")
	}
	span.End()
}

func (t *Telemetry) onLost(r outbox.Runner, e outbox.Event) {
	t.recent.take(r, e.ID)
	t.lost.Add(context.Background(), 1, metric.WithAttributes(append(group(r), destination(e.Namespace, e.Topic))...))
}

func (t *Telemetry) onDead(r outbox.Runner, e outbox.Event, err error) {
	t.dead.Add(context.Background(), 1, metric.WithAttributes(append(group(r), destination(e.Namespace, e.Topic))...))
}

func (t *Telemetry) onResting(r outbox.Runner, target string, _ error) { t.rest(r, target, 1) }

func (t *Telemetry) onResumed(r outbox.Runner, target string, _ time.Duration) { t.rest(r, target, -1) }

func (t *Telemetry) rest(r outbox.Runner, target string, by int64) {
	t.resting.Add(context.Background(), by,
		metric.WithAttributes(append(group(r), attribute.String("outboxgen.target", target))...))
}

// systemOf is the type of messaging.system in messagingconv.
func systemOf(name string) messagingconv.SystemAttr { return messagingconv.SystemAttr(name) }
