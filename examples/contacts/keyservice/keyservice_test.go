package keyservice_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/contacts/keyservice"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/seal"
)

// reached is the payload of an event. In a YAML its field would be `address: {type: string, sensitive: sealed}`.
type reached struct {
	TenantID uuid.UUID `json:"tenant_id"`
	Address  string    `json:"address" outbox:"sealed"`
}

var reachedTopic = outbox.NewTopic[reached](outbox.TopicSpec{
	Namespace: "crm", Name: "reached", Sealed: outbox.SealedFields(), Retry: outbox.Retry{MaxAttempts: 1},
	Keys: func(p any) outbox.Keys { return outbox.Keys{TenantID: outbox.Tenant(p.(*reached).TenantID)} },
})

func start(t testing.TB) (*keyservice.Server, string) {
	t.Helper()
	service := new(keyservice.Server)
	server := httptest.NewServer(service)
	t.Cleanup(server.Close)
	return service, server.URL
}

// TestForgottenTenant: a worker opens what a producer has sealed, with nothing but the service. When the master key of a tenant
// is destroyed, its events cannot be opened any more, and those of others can.
func TestForgottenTenant(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	service, url := start(t)
	gone, kept := outbox.Tenant(uuid.New()), outbox.Tenant(uuid.New())
	enqueue := func(tenant uuid.NullUUID, address string) {
		ctx := seal.ContextWithKeyring(t.Context(), &keyservice.Keyring{URL: url})
		require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := reachedTopic.Enqueue(ctx, tx, reached{tenant.UUID, address})
			return err
		}))
	}
	work := func() (queue.Report, []string) {
		var got []string
		d, err := queue.NewDispatcher(pool, queue.Config{Keyring: &keyservice.Keyring{URL: url}, Logger: slog.New(slog.DiscardHandler)},
			queue.Handle(reachedTopic, t, func(_ context.Context, d outbox.Delivery[reached]) error {
				got = append(got, d.Payload.Address)
				return nil
			}))
		require.NoError(t, err)
		report, err := d.Drain(t.Context())
		require.NoError(t, err)
		return report, got
	}
	enqueue(gone, "anna@example.com")
	report, got := work()
	require.Equal(t, 1, report.Delivered)
	require.Equal(t, []string{"anna@example.com"}, got)

	enqueue(gone, "anna@example.org")
	enqueue(kept, "bert@example.com")
	service.Destroy(gone)
	report, got = work()
	require.Equal(t, 1, report.Dead)
	require.Equal(t, []string{"bert@example.com"}, got)
	var open bool
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT bool_or(payload::text LIKE '%example%') FROM outbox.events").Scan(&open))
	require.False(t, open)
}

// TestServiceIsAskedOnce: data keys are remembered for a time, also by many callers at once. Each has its tenant.
func TestServiceIsAskedOnce(t *testing.T) {
	t.Parallel()
	service, url := start(t)
	tenant := outbox.Tenant(uuid.New())
	k := &keyservice.Keyring{URL: url, Keep: time.Hour}
	sealing, err := k.SealingKey(t.Context(), tenant)
	require.NoError(t, err)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			key, err := k.SealingKey(t.Context(), tenant)
			if err == nil {
				_, err = k.OpeningKey(t.Context(), tenant, key.ID())
			}
			if err != nil || key.ID() != sealing.ID() {
				t.Error("another key", err)
			}
		})
	}
	all.Wait()
	require.Equal(t, 2, service.Calls())
	for _, other := range []uuid.NullUUID{outbox.Tenant(uuid.New()), {}} {
		_, err = k.OpeningKey(t.Context(), other, sealing.ID())
		require.ErrorIs(t, err, seal.ErrNoKey, "the key of another tenant")
	}
	_, err = k.OpeningKey(t.Context(), tenant, "k1")
	require.ErrorIs(t, err, seal.ErrNoKey)

	short := &keyservice.Keyring{URL: url, Keep: time.Nanosecond}
	_, err = short.OpeningKey(t.Context(), tenant, sealing.ID())
	require.NoError(t, err)
	service.Destroy(tenant)
	_, err = short.OpeningKey(t.Context(), tenant, sealing.ID())
	require.ErrorIs(t, err, seal.ErrDestroyed)
	_, err = short.SealingKey(t.Context(), tenant)
	require.ErrorIs(t, err, seal.ErrDestroyed)
	_, err = k.OpeningKey(t.Context(), tenant, sealing.ID())
	require.NoError(t, err, "until Keep is over")
}

// TestServiceIsAway: an error of the service is neither a key that is missing nor one that was destroyed, and is asked again.
func TestServiceIsAway(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	service := new(keyservice.Server)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if away.Load() {
			http.Error(w, "later", http.StatusServiceUnavailable)
			return
		}
		service.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	away.Store(true)
	k := &keyservice.Keyring{URL: server.URL}
	_, err := k.SealingKey(t.Context(), uuid.NullUUID{})
	require.EqualError(t, err, "ask the key service: 503 Service Unavailable")
	away.Store(false)
	_, err = k.SealingKey(t.Context(), uuid.NullUUID{})
	require.NoError(t, err)
	_, err = (&keyservice.Keyring{URL: server.URL + "/elsewhere"}).SealingKey(t.Context(), uuid.NullUUID{})
	require.ErrorIs(t, err, seal.ErrNoKey)
}

// Example seals a value as an enqueue does, and opens it as a handler of another process does.
func Example() {
	server := httptest.NewServer(new(keyservice.Server))
	defer server.Close()
	ctx, event, tenant := context.Background(), uuid.New(), outbox.Tenant(uuid.New())

	producer := &keyservice.Keyring{URL: server.URL}
	key, err := producer.SealingKey(ctx, tenant)
	if err != nil {
		fmt.Println(err)
		return
	}
	box, err := key.For(event, tenant)
	if err != nil {
		fmt.Println(err)
		return
	}
	sealed := box.Seal("/email", []byte(`"anna@example.com"`))

	consumer := &keyservice.Keyring{URL: server.URL}
	id, err := seal.KeyID(sealed)
	if err != nil {
		fmt.Println(err)
		return
	}
	if key, err = consumer.OpeningKey(ctx, tenant, id); err != nil {
		fmt.Println(err)
		return
	}
	if box, err = key.For(event, tenant); err != nil {
		fmt.Println(err)
		return
	}
	value, err := box.Open("/email", sealed)
	fmt.Println(string(value), err)
	// Output: "anna@example.com" <nil>
}
