package prometheus_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/telemetry/prometheus"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(outboxtest.Supervisor))
}

// order is the payload of the topics of the tests.
type order struct {
	ID string `json:"id"`
}

var (
	placed = outbox.NewTopic[order](outbox.TopicSpec{
		Namespace: "shop", Name: "placed",
		Keys: func(p any) outbox.Keys {
			return outbox.Keys{Dedupe: eventkey.NewKey(eventkey.StringPart("id", p.(*order).ID))}
		},
	})
	logged = outbox.NewTopic[order](outbox.TopicSpec{Namespace: "shop", Name: "logged", Log: true})
)

func enqueue(ctx context.Context, t testing.TB, pool *pgxpool.Pool, topic outbox.Topic[order], ids ...string) {
	t.Helper()
	var orders []order
	for _, id := range ids {
		orders = append(orders, order{ID: id})
	}
	require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := topic.EnqueueMany(ctx, tx, orders)
		return err
	}))
}

// handler is a handler of orders.
type handler func(context.Context, outbox.Delivery[order]) error

func (h handler) Handle(ctx context.Context, d outbox.Delivery[order]) error { return h(ctx, d) }

// scrape returns the values of c as in the text format: name{label="value"}, without empty labels. A histogram has its
// number of measurements.
func scrape(t testing.TB, c *prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prom.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	families, err := registry.Gather()
	require.NoError(t, err)
	values := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if l.GetValue() != "" {
					labels = append(labels, l.GetName()+"="+l.GetValue())
				}
			}
			name := f.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return values
}
