package promtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/telemetry/prometheus"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(outboxtest.Supervisor))
}

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
	mailed = outbox.NewTopic[order](outbox.TopicSpec{Namespace: "shop", Name: "mailed"})
	logged = outbox.NewTopic[order](outbox.TopicSpec{Namespace: "shop", Name: "logged", Log: true})
)

type handler func(context.Context, outbox.Delivery[order]) error

func (h handler) Handle(ctx context.Context, d outbox.Delivery[order]) error { return h(ctx, d) }

// TestMetricsExist runs a service with a dispatcher, a listener, a target that is unavailable and a consumer's message, and checks that its
// /metrics has every metric that the alerts and the dashboard name.
func TestMetricsExist(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	collector, err := prometheus.New(prometheus.Config{Pool: pool, Interval: 100 * time.Millisecond})
	require.NoError(t, err)
	registry := prom.NewPedanticRegistry()
	registry.MustRegister(collector)
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	defer server.Close()

	h := handler(func(ctx context.Context, d outbox.Delivery[order]) error {
		switch d.Payload.ID {
		case "away":
			return outbox.Unavailable(errors.New("away"))
		case "dead":
			return outbox.Permanent(errors.New("broken"))
		case "lost": // as if the lease had run out, and another process had claimed the event
			_, err := pool.Exec(ctx, "UPDATE outbox.queue SET claim_no = claim_no + 1 WHERE id = $1", d.ID)
			return err
		}
		return nil
	})
	d, err := queue.NewDispatcher(pool, queue.Config{Observer: collector.Observer()},
		queue.Handle(placed, h, h.Handle), queue.Handle(mailed, h, h.Handle))
	require.NoError(t, err)
	l, err := listener.New(pool, listener.Spec{Name: "ears"}, listener.Config{Observer: collector.Observer()}, listener.Handle(logged, h, h.Handle))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(outbox.ContextWithObserver(t.Context(), collector.Observer()))
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{collector.Run, d.Run, l.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	defer running.Wait()
	defer cancel()
	for topic, ids := range map[outbox.Topic[order]][]string{placed: {"good", "good", "dead", "lost"}, mailed: {"away"}, logged: {"good"}} {
		var orders []order
		for _, id := range ids {
			orders = append(orders, order{id})
		}
		require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := topic.EnqueueMany(ctx, tx, orders)
			return err
		}))
	}
	_, err = placed.Enqueue(ctx, nil, order{})
	require.Error(t, err)

	_, err = pool.Exec(ctx, `INSERT INTO outbox.inbox_messages (consumer_group, message_id, place, type, namespace, topic, version, envelope, body, status, attempts, next_attempt_at, error)
		VALUES ('cards', 'm', 'p', 't', 'n', 't', 1, '{}', '{}', 'parked', 1, now(), 'e')`)
	require.NoError(t, err)

	_, err = pool.Exec(ctx, `INSERT INTO outbox.limits (namespace, topic, per, counted_as, nth, tag, part, concurrency)
		VALUES ('shop', 'rated', 'tenant', 'rated', 1, 'a', 1, 3)`)
	require.NoError(t, err)

	wanted := make(map[string]string) // metric: where it is named
	for _, r := range rules(t, configs["yaml"]) {
		for _, name := range metrics(t, r.Expr) {
			wanted[name] = "alert " + r.Alert
		}
	}
	for title, list := range queries(t, configs["yaml"]) {
		for _, q := range list {
			for _, name := range metrics(t, q) {
				wanted[name] = "panel " + title
			}
		}
	}
	var missing []string
	require.Eventually(t, func() bool {
		exported := scrape(t, server.URL+"/metrics")
		missing = nil
		for name, where := range wanted {
			if !exported[name] {
				missing = append(missing, fmt.Sprintf("%s, which %s names", name, where))
			}
		}
		return len(missing) == 0
	}, time.Minute, 50*time.Millisecond, "not exported: %v", &missing)
}

// scrape returns the names of the samples at url.
func scrape(t testing.TB, url string) map[string]bool {
	resp, err := http.Get(url)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer resp.Body.Close()
	names := make(map[string]bool)
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		if line := s.Text(); !strings.HasPrefix(line, "#") {
			names[line[:strings.IndexAny(line, "{ ")]] = true
		}
	}
	return names
}
