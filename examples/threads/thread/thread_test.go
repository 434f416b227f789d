package thread_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/threads/database"
	"github.com/outboxgen/outboxgen/examples/threads/events"
	"github.com/outboxgen/outboxgen/examples/threads/thread"
	"github.com/outboxgen/outboxgen/outboxtest"
)

// fixture is a database with one thread.
type fixture struct {
	t          *testing.T
	pool       *pgxpool.Pool
	tenant, id uuid.UUID
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, pool: outboxtest.Postgres(t), tenant: uuid.New(), id: uuid.New()}
	require.NoError(t, database.Migrate(t.Context(), f.pool))
	created, err := f.create(f.tenant, f.id)
	require.NoError(t, err)
	require.True(t, created)
	return f
}

func (f *fixture) create(tenant, id uuid.UUID) (created bool, err error) {
	err = pgx.BeginFunc(f.t.Context(), f.pool, func(tx pgx.Tx) error {
		created, err = thread.Create(f.t.Context(), tx, tenant, id)
		return err
	})
	return created, err
}

func (f *fixture) draft(text string) thread.Draft {
	return thread.Draft{TenantID: f.tenant, ThreadID: f.id, ID: uuid.New(), Role: events.RoleUser, Author: "ada", Text: text}
}

func (f *fixture) post(d thread.Draft) (m thread.Message, created bool, err error) {
	return post(f.t.Context(), f.pool, d)
}

func post(ctx context.Context, pool *pgxpool.Pool, d thread.Draft) (m thread.Message, created bool, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		m, created, err = thread.Post(ctx, tx, d)
		return err
	})
	return m, created, err
}

func (f *fixture) count(query string) (n int) {
	f.t.Helper()
	require.NoError(f.t, f.pool.QueryRow(f.t.Context(), query).Scan(&n))
	return n
}

func (f *fixture) requireCounts(messages int) {
	f.t.Helper()
	require.Equal(f.t, messages, f.count("SELECT count(*) FROM chat.messages"), "messages")
	require.Equal(f.t, messages, f.count("SELECT count(*) FROM outbox.log"), "events")
	require.Equal(f.t, messages, f.count("SELECT last_number FROM chat.threads"), "last number")
}

func TestCreateTwiceIsOneThread(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	created, err := f.create(f.tenant, f.id)
	require.NoError(t, err)
	require.False(t, created)
	_, err = f.create(uuid.New(), f.id)
	require.ErrorIs(t, err, thread.ErrIDTaken)
	require.ErrorIs(t, thread.Find(t.Context(), f.pool, uuid.New(), f.id), thread.ErrThreadNotFound)
	require.NoError(t, thread.Find(t.Context(), f.pool, f.tenant, f.id))
}

func TestMessagesAreTheTenantsOwn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var ids []uuid.UUID
	for _, text := range []string{"one", "two", "three"} {
		m, _, err := f.post(f.draft(text))
		require.NoError(t, err)
		ids = append(ids, m.ID)
	}

	page, err := thread.After(t.Context(), f.pool, f.tenant, f.id, 1, 1)
	require.NoError(t, err)
	require.Len(t, page, 1)
	require.Equal(t, "two", page[0].Text)
	m, err := thread.Get(t.Context(), f.pool, f.tenant, f.id, ids[1])
	require.NoError(t, err)
	require.Equal(t, page[0], m)

	page, err = thread.After(t.Context(), f.pool, uuid.New(), f.id, 0, 10)
	require.NoError(t, err)
	require.Empty(t, page)
	_, err = thread.Get(t.Context(), f.pool, uuid.New(), f.id, ids[1])
	require.ErrorIs(t, err, thread.ErrMessageNotFound)
	other := f.draft("four")
	other.TenantID = uuid.New()
	_, _, err = f.post(other)
	require.ErrorIs(t, err, thread.ErrThreadNotFound)
	f.requireCounts(3)
}
