package user_test

import (
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/users/database"
	"github.com/outboxgen/outboxgen/examples/users/events"
	"github.com/outboxgen/outboxgen/examples/users/user"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
)

type fixture struct {
	t          *testing.T
	pool       *pgxpool.Pool
	tenant, id uuid.UUID
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, pool: outboxtest.Postgres(t), tenant: uuid.New(), id: uuid.New()}
	require.NoError(t, database.Migrate(t.Context(), f.pool))
	return f
}

func (f *fixture) create(name string) (u user.User, err error) {
	err = f.inTx(func(tx pgx.Tx) error {
		u, err = user.Create(f.t.Context(), tx, f.tenant, f.id, name, "ada@example.com")
		return err
	})
	return u, err
}

func (f *fixture) rename(tenant uuid.UUID, name string) (u user.User, err error) {
	err = f.inTx(func(tx pgx.Tx) error {
		u, err = user.Rename(f.t.Context(), tx, tenant, f.id, name)
		return err
	})
	return u, err
}

func (f *fixture) delete() error {
	return f.inTx(func(tx pgx.Tx) error { return user.Delete(f.t.Context(), tx, f.tenant, f.id) })
}

func (f *fixture) inTx(do func(pgx.Tx) error) error {
	return pgx.BeginFunc(f.t.Context(), f.pool, do)
}

// requireLog fails unless the log has so many events with versions in order.
func (f *fixture) requireLog(events int) {
	f.t.Helper()
	rows, err := f.pool.Query(f.t.Context(), "SELECT entity_version FROM outbox.log ORDER BY seq")
	require.NoError(f.t, err)
	versions, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	require.NoError(f.t, err)
	require.Len(f.t, versions, events)
	for i, version := range versions {
		require.EqualValues(f.t, i+1, version)
	}
}

func TestLife(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := f.create("Ada")
	require.NoError(t, err)
	u, err := f.rename(f.tenant, "Ada L.")
	require.NoError(t, err)
	require.EqualValues(t, 2, u.Version)
	p := outboxtest.RequireEnqueued(t, f.pool, events.UserRenamedTopic, func(p events.UserRenamed) bool { return p.UserID == f.id })
	require.Equal(t, "Ada L.", p.Profile.Name)
	require.Equal(t, "ada@example.com", p.Profile.Email)
	require.True(t, u.JoinedAt.Equal(p.Profile.JoinedAt))
	require.NoError(t, f.delete())
	outboxtest.RequireEnqueued(t, f.pool, events.UserDeletedTopic, func(p events.UserDeleted) bool { return p.UserVersion == 3 })

	_, err = f.rename(f.tenant, "Ada")
	require.ErrorIs(t, err, user.ErrNotFound)
	require.ErrorIs(t, f.delete(), user.ErrNotFound)
	_, err = f.create("Ada")
	require.ErrorIs(t, err, user.ErrIDTaken)
	users, err := user.List(t.Context(), f.pool, f.tenant)
	require.NoError(t, err)
	require.Empty(t, users)
	f.requireLog(3)
}

func TestRepeatsChangeNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, err := f.create("Ada")
	require.NoError(t, err)
	again, err := f.create("Ada")
	require.NoError(t, err)
	require.Equal(t, first, again)
	_, err = f.create("Bob")
	require.ErrorIs(t, err, user.ErrIDTaken)
	same, err := f.rename(f.tenant, "Ada")
	require.NoError(t, err)
	require.Equal(t, first, same)
	f.requireLog(1)
}

func TestMistakesLeaveNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := f.create("")
	require.ErrorIs(t, err, outbox.ErrPayloadInvalid)
	f.requireLog(0)
	_, err = f.create("Ada")
	require.NoError(t, err)
	_, err = f.rename(uuid.New(), "Eve")
	require.ErrorIs(t, err, user.ErrNotFound)
	u, err := user.Get(t.Context(), f.pool, f.tenant, f.id)
	require.NoError(t, err)
	require.Equal(t, "Ada", u.Name)
	f.requireLog(1)
}

// TestRenameConcurrently checks that the log has the renames of a user in the order of their versions.
func TestRenameConcurrently(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := f.create("Ada")
	require.NoError(t, err)
	var busy sync.WaitGroup
	errs := make([]error, 6)
	for i := range errs {
		busy.Go(func() {
			for range 5 {
				if _, errs[i] = f.rename(f.tenant, uuid.NewString()); errs[i] != nil {
					return
				}
			}
		})
	}
	busy.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	f.requireLog(31)
}
