package chat_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/minichat/chat"
	"github.com/outboxgen/outboxgen/examples/minichat/database"
	"github.com/outboxgen/outboxgen/examples/minichat/events"
	"github.com/outboxgen/outboxgen/outboxtest"
)

const (
	budget  = 1000
	reserve = 300
)

// fixture is a service on its own database, with one tenant who has a budget.
type fixture struct {
	*chat.Service
	t      *testing.T
	pool   *pgxpool.Pool
	tenant uuid.UUID
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	pool := outboxtest.Postgres(t)
	require.NoError(t, database.Migrate(t.Context(), pool))
	f := &fixture{Service: chat.NewService(pool), t: t, pool: pool, tenant: uuid.New()}
	require.NoError(t, f.SetBudget(t.Context(), f.tenant, budget))
	return f
}

func (f *fixture) request(tokens int64) chat.StartRequest {
	return chat.StartRequest{
		TenantID: f.tenant, ChatID: uuid.New(), RequestID: uuid.New(), Model: "small-1", ReserveTokens: tokens,
	}
}

// start begins a turn that reserves 300 tokens.
func (f *fixture) start() events.TurnID {
	f.t.Helper()
	id, err := f.Start(f.t.Context(), f.request(reserve))
	require.NoError(f.t, err)
	return id
}

// ending completes a turn that used 200 tokens.
func (f *fixture) ending(turn events.TurnID) chat.FinalizeRequest {
	return chat.FinalizeRequest{
		TenantID: f.tenant, TurnID: turn, Outcome: events.OutcomeCompleted,
		Usage: events.Usage{InputTokens: 120, OutputTokens: 80}, Tags: []string{"web"},
	}
}

// begin opens a transaction that ends with the test at the latest.
func (f *fixture) begin() pgx.Tx {
	f.t.Helper()
	tx, err := f.pool.Begin(f.t.Context())
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // after a commit it does nothing
	return tx
}

func (f *fixture) quota() chat.Quota {
	f.t.Helper()
	q, err := f.Quota(f.t.Context(), f.tenant)
	require.NoError(f.t, err)
	return q
}

func (f *fixture) state(turn events.TurnID) string {
	f.t.Helper()
	var state string
	require.NoError(f.t, f.pool.QueryRow(f.t.Context(), "SELECT state FROM turns WHERE id = $1", turn).Scan(&state))
	return state
}

// eventCount counts all events of all topics.
func (f *fixture) eventCount() int {
	f.t.Helper()
	var n int
	require.NoError(f.t, f.pool.QueryRow(f.t.Context(), "SELECT count(*) FROM outbox.events").Scan(&n))
	return n
}

func of(turn events.TurnID) func(events.TurnFinalized) bool {
	return func(p events.TurnFinalized) bool { return p.TurnID == turn }
}
