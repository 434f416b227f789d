package admin_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

// Nothing is sent to the database: there is none.
func TestArgumentErrors(t *testing.T) {
	t.Parallel()
	a, err := admin.New(runtimetest.Unconnected(t), "")
	require.NoError(t, err)
	at := somebody
	events := func(f admin.Filter, p admin.Page) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := a.Events(ctx, f, p)
			return err
		}
	}
	for want, test := range map[string]struct {
		argument string
		call     func(context.Context) error
	}{
		`list events: filter: topic "one" needs its namespace`:                {"Filter", events(admin.Filter{Topic: "one"}, admin.Page{})},
		"list events: filter: IDs is empty: nil means all events":             {"Filter", events(admin.Filter{IDs: []uuid.UUID{}}, admin.Page{})},
		"list events: page: Limit -1 is not from 1 to 1000":                   {"Page", events(admin.Filter{}, admin.Page{Limit: -1})},
		"list events: page: After is not the Next of a page with this filter": {"Page", events(admin.Filter{}, admin.Page{After: "x"})},
		"list audit: page: After is not the Next of a page": {"Page", func(ctx context.Context) error {
			_, err := a.Audit(ctx, admin.AuditFilter{}, admin.Page{After: "x"})
			return err
		}},
		"list dead letters: page: limit 0 and before 0 must be positive": {"Page", func(ctx context.Context) error { _, err := a.DeadLetters(ctx, admin.Filter{}, 0, 0); return err }},
		"replay: filter: status pending does not fit dead letters: leave it out": {"Filter", func(ctx context.Context) error {
			_, err := a.Replay(ctx, admin.Filter{Status: admin.StatusPending}, at)
			return err
		}},
		"replay: act: Limit -1 is negative": {"Act", func(ctx context.Context) error {
			_, err := a.Replay(ctx, admin.Filter{}, admin.Act{Who: "ann", Limit: -1})
			return err
		}},
		"discard: act: Why is empty: say why the events may be lost": {"Act", func(ctx context.Context) error {
			_, err := a.Discard(ctx, admin.Filter{}, admin.Act{Who: "ann"})
			return err
		}},
		"pause: scope has the zero UUID as its tenant": {"Scope", func(ctx context.Context) error {
			return a.Pause(ctx, admin.Scope{TenantID: uuid.NullUUID{Valid: true}}, at)
		}},
		"doctor: PoolSize -1 is negative": {"DoctorConfig", func(ctx context.Context) error { _, err := a.Doctor(ctx, admin.DoctorConfig{PoolSize: -1}); return err }},
	} {
		err := test.call(t.Context())
		require.EqualError(t, err, want)
		var wrong *admin.ArgumentError
		require.ErrorAs(t, err, &wrong, want)
		require.Equal(t, test.argument, wrong.Argument)
		require.Contains(t, want, wrong.Problem)
	}
}
