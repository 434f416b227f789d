package otel_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/publish"
)

// TestListeners: two listeners of a process get the same event. Each has its own spans, with its name as the consumer group.
func TestListeners(t *testing.T) {
	t.Parallel()
	pool, r := outboxtest.Postgres(t), newRecorder(t)
	root := r.Context(t.Context())
	ctx, request := r.tracer.Start(root, "request")
	enqueue(ctx, t, pool, logged)
	request.End()

	active := make(map[string]trace.SpanContext)
	for _, name := range []string{"ears", "eyes"} {
		h := handler(func(ctx context.Context, _ outbox.Delivery[order]) error {
			active[name] = trace.SpanContextFromContext(ctx)
			return nil
		})
		l, err := listener.New(pool, listener.Spec{Name: name},
			listener.Config{Observer: r.Observer(), Middleware: []outbox.Middleware{r.Middleware}}, listener.Handle(logged, h, h.Handle))
		require.NoError(t, err)
		_, err = l.Drain(root)
		require.NoError(t, err)
	}
	create := r.one("create shop/logged").SpanContext()
	processes, receives, settles := r.named("process shop/logged"), r.named("receive shop/logged"), r.named("settle shop/logged")
	require.Len(t, processes, 2)
	require.Len(t, receives, 2)
	require.Len(t, settles, 2)
	for i, name := range []string{"ears", "eyes"} {
		require.Equal(t, name, attributes(processes[i].Attributes())["messaging.consumer.group.name"])
		require.Equal(t, name, attributes(receives[i].Attributes())["messaging.consumer.group.name"])
		require.Equal(t, create.SpanID(), processes[i].Parent().SpanID())
		require.Equal(t, []trace.SpanID{create.SpanID(), receives[i].SpanContext().SpanID()}, linked(processes[i]))
		require.Equal(t, processes[i].SpanContext().SpanID(), settles[i].Parent().SpanID())
		require.Equal(t, processes[i].SpanContext().SpanID(), active[name].SpanID())
		require.Equal(t, 1, r.count("messaging.client.consumed.messages", map[string]string{"messaging.consumer.group.name": name}))
		require.Equal(t, 1, r.count("outboxgen.events.settled", map[string]string{"messaging.consumer.group.name": name}))
	}
	r.requireNoSecret()
}

// TestListenerPublishes: what a listener publishes continues the trace.
func TestListenerPublishes(t *testing.T) {
	t.Parallel()
	pool, r := outboxtest.Postgres(t), newRecorder(t)
	root := r.Context(t.Context())
	ctx, request := r.tracer.Start(root, "request")
	enqueue(ctx, t, pool, logged)
	request.End()
	nats := &broker{}
	l, err := listener.New(pool, listener.Spec{Name: "relay"}, listener.Config{
		Observer: r.Observer(), Publishers: map[string]publish.Publisher{"nats": r.Publisher("nats", nats)},
	}, listener.Publish(logged, publish.Publication{Broker: "nats", Destination: "shop.logged"}))
	require.NoError(t, err)
	_, err = l.Drain(root)
	require.NoError(t, err)
	require.Equal(t, request.SpanContext().TraceID(), r.one("send shop.logged").SpanContext().TraceID())
	require.Equal(t, request.SpanContext().TraceID(), r.one("settle shop/logged").SpanContext().TraceID())
	require.Len(t, nats.messages, 1)
	require.Equal(t, "00-"+request.SpanContext().TraceID().String()+"-"+r.one("create shop/logged").SpanContext().SpanID().String()+"-01",
		nats.messages[0].Attributes["traceparent"])
}
