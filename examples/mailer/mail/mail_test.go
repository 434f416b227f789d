package mail_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/mailer/database"
	"github.com/outboxgen/outboxgen/examples/mailer/events"
	"github.com/outboxgen/outboxgen/examples/mailer/mail"
	"github.com/outboxgen/outboxgen/outboxtest"
)

// TestWrittenWithItsEvent: a mail and a digest are there with their events, or not at all.
func TestWrittenWithItsEvent(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	require.NoError(t, database.Migrate(t.Context(), pool))
	tenant, mailbox, reader := uuid.New(), uuid.New(), uuid.New()
	var id, digest uuid.UUID
	write := func(end error) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
			id, err = mail.Write(t.Context(), tx, mail.Mail{TenantID: tenant, MailboxID: mailbox, To: "ada@example.com"})
			require.NoError(t, err)
			digest, err = mail.WriteDigest(t.Context(), tx, mail.Digest{
				TenantID: tenant, Text: "What is new", Readers: map[uuid.UUID]string{reader: "bob@example.com", uuid.New(): "eve@example.com"},
			})
			require.NoError(t, err)
			return end
		})
	}
	rows := func() (mails, digests int) {
		require.NoError(t, pool.QueryRow(t.Context(),
			"SELECT (SELECT count(*) FROM mailer.mails), (SELECT count(*) FROM mailer.digests)").Scan(&mails, &digests))
		return mails, digests
	}

	changed := errors.New("changed my mind")
	require.ErrorIs(t, write(changed), changed)
	mails, digests := rows()
	require.Zero(t, mails+digests)
	outboxtest.RequireNotEnqueued(t, pool, events.MailDueTopic, nil)
	outboxtest.RequireNotEnqueued(t, pool, events.DigestDueTopic, nil)

	require.NoError(t, write(nil))
	mails, digests = rows()
	require.Equal(t, 1, mails)
	require.Equal(t, 2, digests)
	require.Equal(t, id, outboxtest.RequireEnqueued(t, pool, events.MailDueTopic, nil).MailID)
	outboxtest.RequireEnqueued(t, pool, events.DigestDueTopic, func(d events.DigestDue) bool {
		return d.DigestID == digest && d.ReaderID == reader && d.To == "bob@example.com"
	})
}
