// Package mail writes mails and digests that are to be sent. What is written and its events are in one transaction, so
// either both exist or neither does. The limits of the provider are no concern of this package: see events/outbox.yaml.
package mail

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/examples/mailer/events"
)

// Mail is a mail that a mailbox of a tenant sends.
type Mail struct {
	TenantID, MailboxID uuid.UUID
	To, Subject, Text   string
}

// Write writes a mail that is sent after tx has committed, and returns its id.
func Write(ctx context.Context, tx pgx.Tx, m Mail) (uuid.UUID, error) {
	id := uuid.New()
	_, err := tx.Exec(ctx, "INSERT INTO mailer.mails (id, tenant_id, mailbox_id) VALUES ($1, $2, $3)", id, m.TenantID, m.MailboxID)
	if err != nil {
		return id, fmt.Errorf("insert mail: %w", err)
	}
	_, err = events.EnqueueMailDue(ctx, tx, events.MailDue{
		TenantID: m.TenantID, MailboxID: m.MailboxID, MailID: id, To: m.To, Subject: m.Subject, Text: m.Text,
	})
	return id, err
}

// Digest is a text that a tenant sends to its readers.
type Digest struct {
	TenantID uuid.UUID
	Text     string
	Readers  map[uuid.UUID]string // their addresses
}

// WriteDigest writes a digest that is sent after tx has committed, and returns its id. Each reader has an event of its own, so
// that each is retried alone.
func WriteDigest(ctx context.Context, tx pgx.Tx, d Digest) (uuid.UUID, error) {
	id := uuid.New()
	var readers []uuid.UUID
	var due []events.DigestDue
	for reader, to := range d.Readers {
		readers = append(readers, reader)
		due = append(due, events.DigestDue{TenantID: d.TenantID, DigestID: id, ReaderID: reader, To: to, Text: d.Text})
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO mailer.digests (digest_id, tenant_id, reader_id)
		SELECT $1, $2, unnest($3::uuid[])`,
		id, d.TenantID, readers)
	if err != nil {
		return id, fmt.Errorf("insert digest: %w", err)
	}
	_, err = events.EnqueueDigestDueMany(ctx, tx, due)
	return id, err
}
