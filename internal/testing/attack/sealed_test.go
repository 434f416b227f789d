package attack_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/dashboard"
	shop "github.com/outboxgen/outboxgen/generator/testdata/sealed/want"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/seal"
)

// shouter is a handler that prints what it gets, and fails with it.
type shouter struct{ told func(d any) }

func (s *shouter) HandleSaid(_ context.Context, d outbox.Delivery[shop.Said]) error {
	s.told(d)
	return outbox.Permanent(fmt.Errorf("cannot say %v, %+v, %#v, %q", d, d.Payload, d.Payload, d.Payload))
}

// wire is a publisher that keeps what it gets.
type wire struct{ sent []publish.Outgoing }

func (w *wire) Publish(_ context.Context, events []publish.Outgoing) []error {
	w.sent = append(w.sent, events...)
	return make([]error, len(events))
}

// TestSealedValuesAppearNowhere: sealed values are in no table, message, log, error, failed test or page, not even in one
// that shows payloads unmasked.
func TestSealedValuesAppearNowhere(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	spy := runtimetest.NewLogSpy()
	var seen strings.Builder
	look := func(where, text string) {
		require.NotContains(t, text, marker, where)
		_, _ = seen.WriteString(text)
	}
	keys := seal.ForTests()
	ctx := seal.ContextWithKeyring(t.Context(), keys)
	contact := shop.Contact{Email: marker + "@example.com"}
	placed := shop.Placed{
		ShopID: uuid.New(), OrderID: uuid.New(), Card: marker, Paid: 471147114711, Contact: contact, Others: []shop.Contact{contact},
		ByName: map[string]shop.Contact{"a": contact},
	}
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := shop.EnqueuePlaced(ctx, tx, placed)
		require.NoError(t, err)
		_, err = shop.EnqueueTold(ctx, tx, shop.Told{ShopID: uuid.New(), Text: marker})
		require.NoError(t, err)
		_, err = shop.EnqueueSaid(ctx, tx, shop.Said{Text: marker})
		require.NoError(t, err)
		wrong := placed
		wrong.Paid, wrong.Contact.Email = 0, ""
		_, err = shop.EnqueuePlaced(ctx, tx, wrong)
		look("an enqueue of what is not valid", fmt.Sprintf("%v %+v %#v", err, err, err))
		_, err = shop.EnqueuePlaced(t.Context(), tx, placed)
		look("an enqueue without keys", fmt.Sprintf("%v %+v %#v", err, err, err))
		fake := shop.NewFakeShop()
		_, err = fake.EnqueuePlaced(t.Context(), tx, placed)
		require.NoError(t, err)
		look("the fake", fmt.Sprintf("%+v %v", fake, fake.DB))
	})
	look("payloads in package fmt", fmt.Sprintf("%v %+v %#v %s", placed, &placed, placed, shop.Told{Text: marker}))
	f := &failing{TB: t}
	func() {
		defer func() { require.Equal(t, errFailed, recover()) }()
		outboxtest.RequireEnqueued(f, pool, shop.PlacedTopic, func(shop.Placed) bool { return false })
	}()
	look("a failed test", f.text.String())

	l, err := shop.NewEarListener(pool, &shouter{told: func(d any) {
		spy.Logger().Info("got", "delivery", d)
		look("a delivery", fmt.Sprintf("%v %+v %#v", d, d, d))
	}}, listener.Config{Keyring: keys, Logger: spy.Logger()})
	require.NoError(t, err)
	report, err := l.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, report.Dead)
	w := &wire{}
	cfg := runtimetest.QuickConfig()
	cfg.Logger, cfg.Publishers = spy.Logger(), map[string]publish.Publisher{"kafka": w}
	var d *queue.Dispatcher
	d, err = shop.NewShopDispatcher(pool, cfg)
	require.NoError(t, err)
	sent, err := d.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, sent.Delivered)
	for _, e := range w.sent {
		for _, encode := range []publish.Encoder{publish.CloudEvents("/shop", publish.Binary), publish.CloudEvents("/shop", publish.Structured), publish.JSON()} {
			m, err := encode(e)
			require.NoError(t, err)
			look("a message", fmt.Sprintf("%s %v", m.Body, m))
		}
	}
	look("the log", spy.String())
	for _, table := range []string{"events", "queue", "delivered", "log", "dead_letters", "parked", "listeners", "listener_failures", "audit"} {
		look("the table "+table, pgtest.Value[string](t, pool, "SELECT coalesce(string_agg(x::text, ' '), '') FROM outbox."+table+" AS x"))
	}

	ops := runtimetest.AdminOf(t, pool)
	letters, err := ops.DeadLetters(t.Context(), admin.Filter{}, 0, 10)
	require.NoError(t, err)
	require.Len(t, letters, 1)
	encoded, err := json.Marshal(letters)
	require.NoError(t, err)
	look("dead letters as JSON", string(encoded))
	page, err := dashboard.New(dashboard.Config{
		Pool: pool, Mask: dashboard.Unmasked, Logger: spy.Logger(), Authorize: func(*http.Request) (string, error) { return "tester", nil },
	})
	require.NoError(t, err)
	defer page.Close()
	server := httptest.NewServer(page)
	defer server.Close()
	for _, path := range []string{"/", "/events", "/dead", "/topics/shop/placed", "/events/" + letters[0].ID.String(), "/events/" + w.sent[0].ID.String()} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusOK, resp.StatusCode, path)
		look("the page "+path, string(body))
	}
	require.Greater(t, strings.Count(seen.String(), "sealed:v1:for-tests-only:"), 10, "the test must meet what is sealed")
	require.Greater(t, strings.Count(seen.String(), "[masked]"), 3, "the test must meet what is masked")
}
