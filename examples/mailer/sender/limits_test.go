package sender_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/examples/mailer/database"
	"github.com/outboxgen/outboxgen/examples/mailer/provider"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestLimitsOfTheProvider: two dispatchers send what many mailboxes of two tenants have. At no moment are two mails of a mailbox
// sent, or six of a tenant, and a mailbox sends ten in a minute. So the provider, which keeps books of its own, refuses none. Mails
// that the rate holds back do not delay others.
func TestLimitsOfTheProvider(t *testing.T) {
	t.Parallel()
	pool := mailerDatabase(t)
	p := provider.New(10, time.Minute, 20*time.Millisecond)
	large, small, busy := uuid.New(), uuid.New(), uuid.New()
	boxes := map[uuid.UUID]int{busy: 10} // what each sends
	writeMails(t, pool, large, busy, 14)
	for i := range 12 {
		tenant, box := large, uuid.New()
		if i >= 9 {
			tenant = small
		}
		writeMails(t, pool, tenant, box, 5)
		boxes[box] = 5
	}

	stop := runTwo(t, pool, p)
	for box, n := range boxes {
		eventually(t, pool, p, box, n)
	}
	late := uuid.New()
	writeMails(t, pool, large, late, 1)
	eventually(t, pool, p, late, 1)
	stop()

	books := p.Books()
	require.Zero(t, books.Refused)
	for box, n := range boxes {
		require.Equal(t, 1, books.Most[box])
		require.Len(t, books.Starts[box], n)
	}
	require.Equal(t, 5, books.Most[large], "the limit of a tenant is used, and kept")
	require.LessOrEqual(t, books.Most[small], 5)
	require.Equal(t, 4, count(t, pool, "SELECT count(*) FROM outbox.queue WHERE attempts = 0"), "what waits is charged no attempt")
	require.Equal(t, 71, count(t, pool, "SELECT sum(attempts) FROM outbox.delivered"), "nothing was tried twice")
}

// TestRateHoldsInEachWindow: an operator changes the rate to five in a second, and in no second are more mails sent, wherever it
// begins.
func TestRateHoldsInEachWindow(t *testing.T) {
	t.Parallel()
	pool := mailerDatabase(t)
	p := provider.New(5, time.Second, time.Millisecond)
	tenant, box, other := uuid.New(), uuid.New(), uuid.New()
	_, err := dispatcher(t, pool, p).Drain(t.Context()) // declares the limits
	require.NoError(t, err)
	ops, err := admin.New(pool, database.Schema)
	require.NoError(t, err)
	_, err = ops.SetLimit(t.Context(), admin.LimitScope{Namespace: "mails", Topic: "mail_due", Per: "{mailbox_id}"},
		admin.LimitValue{Rate: outbox.Rate{Events: 5, Period: time.Second}}, admin.Act{Who: "ada"})
	require.NoError(t, err)

	writeMails(t, pool, tenant, box, 18)
	writeMails(t, pool, tenant, other, 18)
	stop := runTwo(t, pool, p)
	eventually(t, pool, p, box, 18)
	eventually(t, pool, p, other, 18)
	stop()

	books := p.Books()
	require.Zero(t, books.Refused)
	for _, id := range []uuid.UUID{box, other} {
		require.Equal(t, 1, books.Most[id])
		starts := books.Starts[id]
		require.Len(t, starts, 18)
		for i := 5; i < len(starts); i++ {
			require.GreaterOrEqual(t, starts[i].Sub(starts[i-5]), time.Second, "mails %d to %d", i-5, i)
		}
	}
}
