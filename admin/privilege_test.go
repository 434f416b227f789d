package admin_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/migrate"
)

// TestOperatorRoles: the operator of `outboxgen migrate get --roles` can do all that an operator does, and the reader can look
// and change nothing.
func TestOperatorRoles(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	manyDead(t, pool, 6)
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, runtimetest.NewNotes()))
	pgtest.Execute(t, pool, `INSERT INTO outbox.dead_letters (listener, seq, bucket, id, namespace, topic, version, payload, created_at, attempts, error)
		SELECT 'ears', n, 0, gen_random_uuid(), 'test', 'said', 1, '{}', now(), 1, 'no' FROM generate_series(1, 3) AS n`)
	pgtest.Execute(t, pool, `INSERT INTO outbox.limits (namespace, topic, per, counted_as, nth, tag, part, concurrency)
		VALUES ('jobs', 'mail', '', 'mail', 1, 'a', 0, 3)`)
	limit := admin.LimitScope{Namespace: "jobs", Topic: "mail"}
	roles := runtimetest.RolePools(t, pool)
	operator, reader := runtimetest.AdminOf(t, roles[migrate.Operator]), runtimetest.AdminOf(t, roles[migrate.Reader])
	var letters []admin.DeadLetter
	look := func(ctx context.Context, a *admin.Admin, pool *pgxpool.Pool) {
		_, err := a.Topics(ctx)
		require.NoError(t, err)
		_, err = a.Listeners(ctx)
		require.NoError(t, err)
		page, err := a.Events(ctx, admin.Filter{}, admin.Page{})
		require.NoError(t, err)
		require.NotEmpty(t, page.Events)
		_, err = a.Event(ctx, page.Events[0].ID)
		require.NoError(t, err)
		_, err = a.DeadGroups(ctx, admin.Filter{})
		require.NoError(t, err)
		letters, err = a.DeadLetters(ctx, admin.Filter{}, 0, 100)
		require.NoError(t, err)
		_, err = a.Pauses(ctx)
		require.NoError(t, err)
		_, err = a.Processes(ctx)
		require.NoError(t, err)
		limits, err := a.Limits(ctx)
		require.NoError(t, err)
		require.NotEmpty(t, limits)
		_, err = a.LimitWaits(ctx)
		require.NoError(t, err)
		_, err = a.LogTopics(ctx)
		require.NoError(t, err)
		_, err = a.Overview(ctx)
		require.NoError(t, err)
		_, err = a.Audit(ctx, admin.AuditFilter{}, admin.Page{})
		require.NoError(t, err)
		_, err = a.Parked(ctx, "cards", 1)
		require.NoError(t, err)
		_, _, err = a.ParkedMessage(ctx, "cards", 1)
		require.NoError(t, err)
		_, err = a.Drained(ctx, "jobs/mail", 1)
		require.NoError(t, err)
		_, err = a.ConsumerGroups(ctx)
		require.NoError(t, err)
	}
	look(t.Context(), reader, roles[migrate.Reader])
	look(t.Context(), operator, roles[migrate.Operator])

	// A viewer sees all of it but what is in an event, or kept by a consumer.
	viewer := runtimetest.AdminOf(t, roles[migrate.Viewer])
	_, err := viewer.Overview(t.Context())
	require.NoError(t, err)
	_, err = viewer.Topics(t.Context())
	require.NoError(t, err)
	_, err = viewer.Listeners(t.Context())
	require.NoError(t, err)
	page, err := viewer.Events(t.Context(), admin.Filter{}, admin.Page{})
	require.NoError(t, err)
	require.NotEmpty(t, page.Events)
	_, err = viewer.DeadGroups(t.Context(), admin.Filter{})
	require.NoError(t, err)
	_, err = viewer.Limits(t.Context())
	require.NoError(t, err)
	_, err = viewer.Audit(t.Context(), admin.AuditFilter{}, admin.Page{})
	require.NoError(t, err)
	_, err = viewer.ConsumerGroups(t.Context())
	require.NoError(t, err)
	_, err = viewer.Event(t.Context(), page.Events[0].ID)
	require.ErrorContains(t, err, "permission denied")
	_, err = viewer.DeadLetters(t.Context(), admin.Filter{}, 0, 100)
	require.ErrorContains(t, err, "permission denied")
	_, _, err = viewer.ParkedMessage(t.Context(), "cards", 1)
	require.ErrorContains(t, err, "permission denied")

	var queued, heard uuid.UUID
	for _, l := range letters {
		if l.Listener == "" {
			queued = l.ID
		} else {
			heard = l.ID
		}
	}
	namespace := admin.Scope{Namespace: letters[len(letters)-1].Namespace}
	why := admin.Act{Who: "tester", Why: "it is a test"}
	acts := []func(ctx context.Context, a *admin.Admin) error{
		func(ctx context.Context, a *admin.Admin) error {
			_, err := a.ReplayEdited(ctx, queued, "", json.RawMessage(`{}`), why)
			return err
		},
		func(ctx context.Context, a *admin.Admin) error {
			_, err := a.ReplayEdited(ctx, heard, "ears", json.RawMessage(`{}`), why)
			return err
		},
		func(ctx context.Context, a *admin.Admin) error {
			_, err := a.Replay(ctx, admin.Filter{}, admin.Act{Who: "tester", Limit: 4})
			return err
		},
		func(ctx context.Context, a *admin.Admin) error {
			_, err := a.Discard(ctx, admin.Filter{}, why)
			return err
		},
		func(ctx context.Context, a *admin.Admin) error { return a.Pause(ctx, namespace, why) },
		func(ctx context.Context, a *admin.Admin) error {
			_, err := a.Resume(ctx, namespace, why)
			return err
		},
		func(ctx context.Context, a *admin.Admin) error {
			_, err := a.SetLimit(ctx, limit, admin.LimitValue{Concurrency: 2}, why)
			return err
		},
		func(ctx context.Context, a *admin.Admin) error {
			_, err := a.ResetLimit(ctx, limit, false, why)
			return err
		},
		func(ctx context.Context, a *admin.Admin) error {
			_, err := a.As("tester", "it is a test").Rewind(ctx, "ears", time.Time{})
			return err
		},
		func(ctx context.Context, a *admin.Admin) error {
			_, err := a.As("tester", "it is a test").Detach(ctx, "ears")
			return err
		},
	}
	for i, act := range acts {
		require.ErrorContains(t, act(t.Context(), reader), "permission denied", "reader, act %d", i)
		require.ErrorContains(t, act(t.Context(), viewer), "permission denied", "viewer, act %d", i)
		require.NoError(t, act(t.Context(), operator), "operator, act %d", i)
	}
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
}
