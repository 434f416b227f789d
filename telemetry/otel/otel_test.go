package otel_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// TestTraceFromRequestToConsumer follows an event from a request to its handler, whose event goes through a broker to a
// consumer in another service. No handler has a line about traces.
func TestTraceFromRequestToConsumer(t *testing.T) {
	t.Parallel()
	pool, r := outboxtest.Postgres(t), newRecorder(t)
	root := r.Context(t.Context())
	onPlaced := handler(func(ctx context.Context, d outbox.Delivery[order]) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := shipped.Enqueue(ctx, tx, d.Payload)
			return err
		})
	})
	kafka := &broker{}
	d, err := queue.NewDispatcher(pool, queue.Config{
		Observer: r.Observer(), Middleware: []outbox.Middleware{r.Middleware},
		Publishers: map[string]publish.Publisher{"kafka": r.Publisher("kafka", kafka)},
	}, queue.Handle(placed, onPlaced, onPlaced.Handle), queue.Publish(shipped, publish.Publication{Broker: "kafka", Destination: "shop.shipped"}))
	require.NoError(t, err)

	_, err = d.Drain(root) // finds nothing
	require.NoError(t, err)
	require.Empty(t, r.names(), "a poll makes no span")

	ctx, request := r.tracer.Start(root, "request")
	enqueue(ctx, t, pool, placed, outbox.WithHeaders(map[string]string{"caller": "web"}))
	request.End()
	report, err := d.Drain(root)
	require.NoError(t, err)
	require.Equal(t, 2, report.Delivered)

	ib, err := inbox.New(inbox.Config{Group: "billing"})
	require.NoError(t, err)
	var consumed trace.SpanContext
	consumer, err := consume.New(ib, consume.Handle(consume.NewTopic[order](consume.TopicSpec{Namespace: "shop", Name: "shipped"}), t,
		func(_ *testing.T, ctx context.Context, _ pgx.Tx, _ consume.Delivery[order]) error {
			consumed = trace.SpanContextFromContext(ctx)
			return nil
		}))
	require.NoError(t, err)
	require.Len(t, kafka.messages, 1)
	message := consume.Message(kafka.messages[0])
	require.NoError(t, r.Consume(t.Context(), "kafka", "billing", message, func(ctx context.Context) error {
		_, err := consumer.Consume(ctx, pool, message)
		return err
	}))

	of := request.SpanContext().TraceID()
	create, handle := r.one("create shop/placed"), r.one("process shop/placed")
	require.Equal(t, request.SpanContext().SpanID(), create.Parent().SpanID())
	require.Equal(t, trace.SpanKindProducer, create.SpanKind())
	require.Equal(t, create.SpanContext().SpanID(), handle.Parent().SpanID())
	require.Equal(t, trace.SpanKindConsumer, handle.SpanKind())
	receives := r.named("receive shop/placed")
	require.Len(t, receives, 1)
	require.Contains(t, linked(handle), receives[0].SpanContext().SpanID())
	require.Contains(t, linked(receives[0]), create.SpanContext().SpanID())
	require.False(t, receives[0].Parent().IsValid())
	require.Equal(t, handle.SpanContext().SpanID(), r.one("settle shop/placed").Parent().SpanID())

	second, send := r.one("create shop/shipped"), r.one("send shop.shipped")
	require.Equal(t, handle.SpanContext().SpanID(), second.Parent().SpanID())
	require.Equal(t, second.SpanContext().SpanID(), send.Parent().SpanID())
	require.Equal(t, []trace.SpanID{second.SpanContext().SpanID()}, linked(send))
	require.Equal(t, send.SpanContext().SpanID(), kafka.active.SpanID(), "spans of the broker's client are in it")
	var last trace.SpanContext
	for _, s := range r.named("process shop/shipped") {
		last = s.SpanContext()
		require.Equal(t, second.SpanContext().SpanID(), s.Parent().SpanID())
		require.Equal(t, "billing", attributes(s.Attributes())["messaging.consumer.group.name"])
		require.Equal(t, "kafka", attributes(s.Attributes())["messaging.system"])
	}
	require.Equal(t, last.SpanID(), consumed.SpanID())
	require.Equal(t, of, consumed.TraceID(), "one trace from the request to the consumer")
	require.Empty(t, second.Links(), "its cause is above it already")
	chain := attributes(r.named("process shop/shipped")[0].Attributes())["messaging.message.conversation_id"]
	require.Equal(t, attributes(handle.Attributes())["messaging.message.id"], chain)
	require.NotContains(t, attributes(handle.Attributes()), "messaging.message.conversation_id", "it begins the chain")

	require.Equal(t, "shop/placed", attributes(handle.Attributes())["messaging.destination.name"])
	require.Equal(t, "process", attributes(handle.Attributes())["messaging.operation.type"])
	require.Equal(t, "1", attributes(handle.Attributes())["outboxgen.attempt"])
	require.Equal(t, 1, r.count("messaging.client.sent.messages", map[string]string{"messaging.destination.name": "shop/placed", "messaging.system": "outboxgen"}))
	require.Equal(t, 1, r.count("messaging.client.sent.messages", map[string]string{"messaging.destination.name": "shop.shipped", "messaging.system": "kafka"}))
	require.Equal(t, 1, r.count("messaging.client.consumed.messages", map[string]string{"messaging.destination.name": "shop/placed"}))
	require.Equal(t, 1, r.count("messaging.process.duration", map[string]string{"messaging.destination.name": "shop/placed", "messaging.operation.name": "handle"}))
	require.Equal(t, 2, r.count("outboxgen.events.settled", map[string]string{"outboxgen.settlement": "delivered"}))
	r.requireNoSecret()
}

// TestBatchIsOneSpan: a call with several events has one span, which is in the trace of the enqueue that has made all of
// them, and the settlements are below it.
func TestBatchIsOneSpan(t *testing.T) {
	t.Parallel()
	pool, r := outboxtest.Postgres(t), newRecorder(t)
	root := r.Context(t.Context())
	batched := outbox.NewTopic[order](outbox.TopicSpec{Namespace: "shop", Name: "placed", Batch: outbox.Batch{Size: 10}})
	var active trace.SpanContext
	d, err := queue.NewDispatcher(pool, queue.Config{
		Observer: r.Observer(), BatchMiddleware: []outbox.BatchMiddleware{r.BatchMiddleware},
	}, queue.HandleBatch(batched, t, func(ctx context.Context, ds []outbox.Delivery[order]) error {
		active = trace.SpanContextFromContext(ctx)
		if len(ds) == 1 {
			return nil
		}
		var failed outbox.BatchError
		failed.Fail(ds[1].Event, outbox.Permanent(errors.New("no")))
		return failed.Err()
	}))
	require.NoError(t, err)
	ctx, request := r.tracer.Start(root, "request")
	require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := batched.EnqueueMany(ctx, tx, []order{{secret}, {secret}, {secret}})
		return err
	}))
	request.End()
	report, err := d.Drain(root)
	require.NoError(t, err)
	require.Equal(t, 2, report.Delivered)
	create, handle := r.one("create shop/placed"), r.one("process shop/placed")
	require.Equal(t, create.SpanContext().SpanID(), handle.Parent().SpanID())
	require.Equal(t, handle.SpanContext().SpanID(), active.SpanID())
	require.Equal(t, "3", attributes(handle.Attributes())["messaging.batch.message_count"])
	require.Equal(t, codes.Error, handle.Status().Code)
	require.Len(t, handle.Links(), 4, "a claim, and three enqueues")
	require.Contains(t, linked(handle), r.named("receive shop/placed")[0].SpanContext().SpanID())
	require.Len(t, r.named("settle shop/placed"), 3)
	for _, settle := range r.named("settle shop/placed") {
		require.Equal(t, handle.SpanContext().SpanID(), settle.Parent().SpanID())
	}
	require.Equal(t, 1, r.count("messaging.process.duration", map[string]string{"messaging.destination.name": "shop/placed"}))

	enqueue(root, t, pool, batched) // without an active span
	_, err = d.Drain(root)
	require.NoError(t, err)
	last := r.named("process shop/placed")[1]
	require.False(t, last.Parent().IsValid())
	r.requireNoSecret()
}

// TestNoTrace: without an active span an enqueue makes no span, and the handler's span is a root.
func TestNoTrace(t *testing.T) {
	t.Parallel()
	pool, r := outboxtest.Postgres(t), newRecorder(t)
	root := r.Context(t.Context())
	enqueue(root, t, pool, placed)
	require.Empty(t, r.names())
	h := handler(func(context.Context, outbox.Delivery[order]) error { return nil })
	d, err := queue.NewDispatcher(pool, queue.Config{Observer: r.Observer(), Middleware: []outbox.Middleware{r.Middleware}},
		queue.Handle(placed, h, h.Handle))
	require.NoError(t, err)
	_, err = d.Drain(root)
	require.NoError(t, err)
	process := r.one("process shop/placed")
	require.False(t, process.Parent().IsValid())
	require.Equal(t, []trace.SpanID{r.one("receive shop/placed").SpanContext().SpanID()}, linked(process))
}

// TestFailures: failed attempts fail their spans, and are counted.
func TestFailures(t *testing.T) {
	t.Parallel()
	pool, r := outboxtest.Postgres(t), newRecorder(t)
	root := r.Context(t.Context())
	broken := errors.New("broken")
	h := handler(func(_ context.Context, d outbox.Delivery[order]) error {
		if d.Headers["panic"] != "" {
			panic(secret)
		}
		return outbox.Permanent(broken)
	})
	d, err := queue.NewDispatcher(pool, queue.Config{Observer: r.Observer(), Middleware: []outbox.Middleware{r.Middleware}},
		queue.Handle(placed, h, h.Handle))
	require.NoError(t, err)

	ctx, request := r.tracer.Start(root, "request")
	enqueue(ctx, t, pool, placed)
	request.End()
	_, err = d.Drain(root)
	require.NoError(t, err)
	process, settle := r.one("process shop/placed"), r.one("settle shop/placed")
	require.Equal(t, codes.Error, process.Status().Code)
	require.Equal(t, "broken", process.Status().Description)
	require.NotEmpty(t, attributes(process.Attributes())["error.type"])
	require.Equal(t, codes.Error, settle.Status().Code)
	require.Equal(t, "dead", attributes(settle.Attributes())["outboxgen.settlement"])
	require.Equal(t, 1, r.count("outboxgen.events.dead", map[string]string{"messaging.destination.name": "shop/placed"}))

	enqueue(root, t, pool, placed, outbox.WithHeaders(map[string]string{"panic": "yes"}))
	_, err = d.Drain(root)
	require.NoError(t, err)
	last := r.named("process shop/placed")[1]
	require.Equal(t, "it did not return", last.Status().Description, "a panic ends the span")
	require.Equal(t, 1, r.count("outboxgen.events.settled", map[string]string{"outboxgen.settlement": "retried"}))
	r.requireNoSecret()

	cause := errors.New("refused")
	ctx, request = r.tracer.Start(root, "request")
	_, err = outbox.Enqueue(ctx, failingTx{err: cause}, "", outbox.Message{Namespace: "shop", Topic: "placed", Payload: []byte(`{}`)})
	require.ErrorIs(t, err, cause)
	request.End()
	creates := r.named("create shop/placed")
	require.Equal(t, codes.Error, creates[len(creates)-1].Status().Code)
	require.Equal(t, 1, r.count("messaging.client.operation.duration", map[string]string{"messaging.operation.name": "enqueue", "error.type": "*errors.errorString"}))
}

// failingTx is a transaction whose statements fail.
type failingTx struct {
	pgx.Tx
	err error
}

func (tx failingTx) QueryRow(context.Context, string, ...any) pgx.Row { return failingRow(tx) }

type failingRow failingTx

func (r failingRow) Scan(...any) error { return r.err }

// TestPublisher: a batch of several traces is a root span with links, what was not sent is not counted as sent, and a panic
// ends the span.
func TestPublisher(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	var events []publish.Outgoing
	for range 2 {
		_, span := r.tracer.Start(t.Context(), "request")
		span.End()
		c := span.SpanContext()
		events = append(events, publish.Outgoing{Destination: "shop.shipped", Payload: []byte(`{}`), Event: outbox.Event{
			Namespace: "shop", Topic: "shipped", Headers: map[string]string{"traceparent": "00-" + c.TraceID().String() + "-" + c.SpanID().String() + "-01"},
		}})
	}
	require.Len(t, r.Publisher("kafka", &broker{}).Publish(t.Context(), events), 2)
	send := r.one("send shop.shipped")
	require.False(t, send.Parent().IsValid())
	require.Len(t, send.Links(), 2)
	require.Equal(t, "2", attributes(send.Attributes())["messaging.batch.message_count"])
	require.Equal(t, 2, r.count("messaging.client.sent.messages", nil))

	r = newRecorder(t)
	errs := r.Publisher("kafka", &broker{err: outbox.ErrNotSent}).Publish(t.Context(), events)
	require.ErrorIs(t, errs[1], outbox.ErrNotSent)
	require.Equal(t, 0, r.count("messaging.client.sent.messages", nil))
	errs = r.Publisher("kafka", &broker{err: errors.New("broken")}).Publish(t.Context(), events)
	require.EqualError(t, errs[0], "broken")
	require.Equal(t, 2, r.count("messaging.client.sent.messages", map[string]string{"error.type": "*errors.errorString"}))
	require.Equal(t, codes.Error, r.named("send shop.shipped")[1].Status().Code)
	require.Panics(t, func() { r.Publisher("kafka", nil).Publish(t.Context(), events) })
	require.Len(t, r.named("send shop.shipped"), 3)
}

// TestConsumeUnreadable: a message that cannot be read reaches fn, which reports it.
func TestConsumeUnreadable(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	broken := errors.New("broken")
	err := r.Consume(t.Context(), "kafka", "billing", consume.Message{Body: []byte("x")}, func(context.Context) error { return broken })
	require.Equal(t, broken, err)
	require.Equal(t, codes.Error, r.one("process").Status().Code)
}

// TestACauseOfAnotherTraceIsLinked: a handler of batches gets events of several traces, so its span is in none of them.
func TestACauseOfAnotherTraceIsLinked(t *testing.T) {
	t.Parallel()
	pool, r := outboxtest.Postgres(t), newRecorder(t)
	root := r.Context(t.Context())
	batched := outbox.NewTopic[order](outbox.TopicSpec{Namespace: "shop", Name: "placed", Batch: outbox.Batch{Size: 10}})
	d, err := queue.NewDispatcher(pool, queue.Config{
		Observer: r.Observer(), BatchMiddleware: []outbox.BatchMiddleware{r.BatchMiddleware},
	}, queue.HandleBatch(batched, t, func(ctx context.Context, ds []outbox.Delivery[order]) error {
		enqueue(outbox.ContextWithCause(ctx, ds[1].Event), t, pool, shipped)
		return nil
	}))
	require.NoError(t, err)
	for range 2 {
		ctx, request := r.tracer.Start(root, "request")
		enqueue(ctx, t, pool, batched)
		request.End()
	}
	_, err = d.Drain(root)
	require.NoError(t, err)
	create, handle := r.one("create shop/shipped"), r.one("process shop/placed")
	require.Equal(t, handle.SpanContext().SpanID(), create.Parent().SpanID())
	causes := r.named("create shop/placed")
	require.Len(t, causes, 2)
	require.Equal(t, []trace.SpanID{causes[1].SpanContext().SpanID()}, linked(create))
}
