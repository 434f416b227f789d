package directory_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/contacts/contact"
	"github.com/outboxgen/outboxgen/examples/contacts/database"
	"github.com/outboxgen/outboxgen/examples/contacts/directory"
	"github.com/outboxgen/outboxgen/examples/contacts/events"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/queue"
)

func TestDrainShardedByTenant(t *testing.T) {
	t.Parallel()
	pool := contactsDatabase(t)
	const perTenant = 15
	var tenants []uuid.UUID
	for range 5 {
		tenant := uuid.New()
		tenants = append(tenants, tenant)
		linkMany(t, pool, tenant, perTenant)
	}

	// The first shard does not touch the events of the others.
	require.Equal(t, queue.Report{Delivered: 2 * perTenant}, drain(t, pool, tenants[:2]))
	for i, tenant := range tenants {
		want := 0
		if i < 2 {
			want = perTenant
		}
		require.Equal(t, want, entries(t, pool, tenant), "tenant %d", i)
	}

	// The others drain concurrently, and deliver nothing twice.
	reports := make([]queue.Report, 3)
	var draining sync.WaitGroup
	for i, shard := range [][]uuid.UUID{tenants[2:3], tenants[3:4], tenants[4:]} {
		d := dispatcher(t, pool, shard)
		draining.Go(func() {
			var err error
			reports[i], err = d.Drain(t.Context())
			if err != nil {
				t.Errorf("shard %d: %v", i, err)
			}
		})
	}
	draining.Wait()
	for i, r := range reports {
		require.Equal(t, queue.Report{Delivered: perTenant}, r, "shard %d", i)
	}
	var delivered, attempts int
	require.NoError(t, pool.QueryRow(t.Context(),
		"SELECT count(*), sum(attempts) FROM outbox.delivered").Scan(&delivered, &attempts))
	require.Equal(t, len(tenants)*perTenant, delivered)
	require.Equal(t, delivered, attempts)
}

func TestEventDeliveredTwiceIsOneEntry(t *testing.T) {
	t.Parallel()
	pool := contactsDatabase(t)
	d := outbox.Delivery[events.IdentityLinked]{Payload: events.IdentityLinked{
		TenantID:   uuid.New(),
		ContactID:  uuid.New(),
		IdentityID: uuid.New(),
		Type:       events.IdentityTypePhone,
		Value:      "+49 30 1234",
		LinkedAt:   time.Now(),
	}}
	h := &events.ContactsHandler{Directory: directory.New(pool)}
	for range 2 {
		require.NoError(t, h.HandleIdentityLinked(t.Context(), d))
	}
	require.Equal(t, 1, entries(t, pool, d.Payload.TenantID))
}

func contactsDatabase(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := outboxtest.Postgres(t)
	require.NoError(t, database.Migrate(t.Context(), pool))
	return pool
}

func linkMany(t *testing.T, pool *pgxpool.Pool, tenant uuid.UUID, n int) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		id, err := contact.Create(t.Context(), tx, tenant, "Ada")
		for i := 0; i < n && err == nil; i++ {
			_, err = contact.Link(t.Context(), tx, contact.Identity{TenantID: tenant, ContactID: id, Type: events.IdentityTypeExternalID, Value: fmt.Sprintf("crm-%d", i)})
		}
		return err
	}))
}

func dispatcher(t *testing.T, pool *pgxpool.Pool, shard []uuid.UUID) *queue.Dispatcher {
	t.Helper()
	h := &events.ContactsHandler{Directory: directory.New(pool)}
	d, err := events.NewContactsDispatcher(pool, h, queue.Config{BatchSize: 10, TenantIDs: shard})
	require.NoError(t, err)
	return d
}

func drain(t *testing.T, pool *pgxpool.Pool, shard []uuid.UUID) queue.Report {
	t.Helper()
	r, err := dispatcher(t, pool, shard).Drain(t.Context())
	require.NoError(t, err)
	return r
}

func entries(t *testing.T, pool *pgxpool.Pool, tenant uuid.UUID) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM crm.directory WHERE tenant_id = $1", tenant).Scan(&n))
	return n
}
