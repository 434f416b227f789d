//go:build unix

package admin_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

const (
	deafText    = "^notifications do not arrive: LISTEN succeeds, and a NOTIFY is not received$"
	sharingText = "^a session lost its advisory lock between two statements"
)

// TestDoctorOfListening: notifications that do not arrive are found, and what listens instead is checked.
func TestDoctorOfListening(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Plain(t)
	deaf := runtimetest.Deaf(t, pool)
	f := requireOne(t, diagnose(t, deaf, admin.DoctorConfig{}), "listen", admin.SeverityWarning, deafText)
	require.Contains(t, f.Means, "PgBouncer")
	require.Empty(t, diagnose(t, deaf, admin.DoctorConfig{ListenPool: pool}))
	requireOne(t, diagnose(t, pool, admin.DoctorConfig{ListenPool: deaf}), "listen", admin.SeverityWarning, deafText)
	requireOne(t, diagnose(t, pool, admin.DoctorConfig{ListenPool: pgtest.Plain(t)}), "listen", admin.SeverityWarning, deafText)
}

// TestDoctorThroughPgBouncer: through a transaction pooler, notifications and locks of sessions are lost, and nothing else.
// Prepared statements of the application do not disturb the checks. No lock stays with a server connection.
func TestDoctorThroughPgBouncer(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Plain(t)
	through := runtimetest.PgBouncer(t, pool, "transaction")
	cfg := through.Config()
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement // as pgx has it
	through, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(through.Close)
	for range 3 {
		found := diagnose(t, through, admin.DoctorConfig{})
		require.Len(t, found, 2, "%+v", found)
		requireOne(t, found[:1], "listen", admin.SeverityWarning, deafText)
		requireOne(t, found[1:], "sessions", admin.SeverityWarning, sharingText)
	}
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database WHERE l.locktype = 'advisory' AND d.datname = current_database()"))
	require.Empty(t, diagnose(t, through, admin.DoctorConfig{ListenPool: pool}))
	require.Empty(t, diagnose(t, runtimetest.PgBouncer(t, pool, "session"), admin.DoctorConfig{}))
}
