package otel_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/telemetry/otel"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(outboxtest.Supervisor))
}

// recorder keeps the spans and metrics of a Telemetry.
type recorder struct {
	*otel.Telemetry
	t      testing.TB
	spans  *tracetest.SpanRecorder
	tracer trace.Tracer // of the application
	reader *sdkmetric.ManualReader
}

func newRecorder(t testing.TB) *recorder {
	t.Helper()
	r := &recorder{t: t, spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	traces := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r.spans))
	r.tracer = traces.Tracer("application")
	tel, err := otel.New(otel.Config{TracerProvider: traces, MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(r.reader))})
	require.NoError(t, err)
	r.Telemetry = tel
	return r
}

// named returns the ended spans with a name.
func (r *recorder) named(name string) []sdktrace.ReadOnlySpan {
	var list []sdktrace.ReadOnlySpan
	for _, s := range r.spans.Ended() {
		if s.Name() == name {
			list = append(list, s)
		}
	}
	return list
}

// one returns the only ended span with a name.
func (r *recorder) one(name string) sdktrace.ReadOnlySpan {
	r.t.Helper()
	list := r.named(name)
	require.Len(r.t, list, 1, name)
	return list[0]
}

// names returns the names of the ended spans, in the order of their ends.
func (r *recorder) names() (names []string) {
	for _, s := range r.spans.Ended() {
		names = append(names, s.Name())
	}
	return names
}

// attributes returns the attributes of a span as text.
func attributes(list []attribute.KeyValue) map[string]string {
	m := make(map[string]string, len(list))
	for _, kv := range list {
		m[string(kv.Key)] = kv.Value.String()
	}
	return m
}

// linked returns the ids of the spans that s links to.
func linked(s sdktrace.ReadOnlySpan) (ids []trace.SpanID) {
	for _, l := range s.Links() {
		ids = append(ids, l.SpanContext.SpanID())
	}
	return ids
}

// count returns the sum of the points of a counter, or the number of measurements of a histogram, that have all of want
// among their attributes.
func (r *recorder) count(name string, want map[string]string) (n int) {
	r.t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(r.t, r.reader.Collect(context.Background(), &all))
	matches := func(set attribute.Set) bool {
		have := attributes(set.ToSlice())
		for k, v := range want {
			if have[k] != v {
				return false
			}
		}
		return true
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					if matches(p.Attributes) {
						n += int(p.Value)
					}
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					if matches(p.Attributes) {
						n += int(p.Count)
					}
				}
			}
		}
	}
	return n
}

// order is the payload of the topics of the tests.
type order struct {
	ID string `json:"id"`
}

var (
	placed  = outbox.NewTopic[order](outbox.TopicSpec{Namespace: "shop", Name: "placed"})
	shipped = outbox.NewTopic[order](outbox.TopicSpec{Namespace: "shop", Name: "shipped"})
	logged  = outbox.NewTopic[order](outbox.TopicSpec{Namespace: "shop", Name: "logged", Log: true})
)

// secret is in every payload and in no span or metric.
const secret = "S3CRET"

func enqueue(ctx context.Context, t testing.TB, pool *pgxpool.Pool, topic outbox.Topic[order], opts ...outbox.EnqueueOption) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := topic.Enqueue(ctx, tx, order{ID: secret}, opts...)
		return err
	}))
}

// broker is a publisher that keeps the messages that it gets.
type broker struct {
	messages []publish.Message
	active   trace.SpanContext
	err      error
}

func (b *broker) Publish(ctx context.Context, events []publish.Outgoing) []error {
	b.active = trace.SpanContextFromContext(ctx)
	errs := make([]error, len(events))
	for i, e := range events {
		if errs[i] = b.err; b.err == nil {
			m, err := publish.Encoder(nil).Encode(e)
			b.messages, errs[i] = append(b.messages, m), err
		}
	}
	return errs
}

// handler is a handler of orders.
type handler func(context.Context, outbox.Delivery[order]) error

func (h handler) Handle(ctx context.Context, d outbox.Delivery[order]) error { return h(ctx, d) }

// requireNoSecret checks that no payload is in any span or metric.
func (r *recorder) requireNoSecret() {
	r.t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(r.t, r.reader.Collect(context.Background(), &all))
	metrics, err := json.Marshal(all)
	require.NoError(r.t, err)
	spans, err := json.Marshal(tracetest.SpanStubsFromReadOnlySpans(r.spans.Ended()))
	require.NoError(r.t, err)
	require.NotContains(r.t, string(metrics)+string(spans), secret)
}
