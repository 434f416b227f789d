// Package sender sends mails and digests by the mail provider. It has no code for the limits of the provider: the
// dispatchers start a handler only when they allow it.
package sender

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/mailer/events"
	"github.com/outboxgen/outboxgen/examples/mailer/provider"
	"github.com/outboxgen/outboxgen/outbox"
)

// Sender sends mails. Any number of goroutines may use it concurrently.
type Sender struct {
	pool     *pgxpool.Pool
	provider *provider.Provider
}

var _ events.Sender = (*Sender)(nil)

// New returns a sender that notes in the database of pool what was sent. The caller closes pool.
func New(pool *pgxpool.Pool, p *provider.Provider) *Sender { return &Sender{pool: pool, provider: p} }

// Send sends a mail, once however often it is called for it.
func (s *Sender) Send(ctx context.Context, m events.MailDue) error {
	err := s.provider.Send(ctx, provider.Mail{
		Key: m.MailID.String(), TenantID: m.TenantID, MailboxID: m.MailboxID, To: m.To, Text: m.Subject + "\n\n" + m.Text,
	})
	if err != nil {
		return fmt.Errorf("send mail %s: %w", m.MailID, marked(err))
	}
	if _, err := s.pool.Exec(ctx, "UPDATE mailer.mails SET sent_at = coalesce(sent_at, now()) WHERE id = $1", m.MailID); err != nil {
		return fmt.Errorf("note mail %s: %w", m.MailID, err)
	}
	return nil
}

// SendDigests sends ds in one call, each once however often it is called for it. If the provider refuses some of them, only
// these fail. If it refuses the call, all fail, and the dispatcher looks for the digest that is at fault.
func (s *Sender) SendDigests(ctx context.Context, ds []outbox.Delivery[events.DigestDue]) error {
	mails := make([]provider.Mail, len(ds))
	for i, d := range ds {
		p := d.Payload
		mails[i] = provider.Mail{Key: p.DigestID.String() + "/" + p.ReaderID.String(), TenantID: p.TenantID, To: p.To, Text: p.Text}
	}
	refusals, err := s.provider.SendAll(ctx, mails)
	if err != nil {
		return fmt.Errorf("send %d digests: %w", len(ds), marked(err))
	}
	var failed outbox.BatchError
	var digests, readers []uuid.UUID
	for i, d := range ds {
		if refusals[i] != nil {
			failed.Fail(d.Event, marked(refusals[i]))
			continue
		}
		digests, readers = append(digests, d.Payload.DigestID), append(readers, d.Payload.ReaderID)
	}
	_, err = s.pool.Exec(ctx, `
		UPDATE mailer.digests AS d
		SET sent_at = coalesce(d.sent_at, now())
		FROM unnest($1::uuid[], $2::uuid[]) AS sent (digest_id, reader_id)
		WHERE d.digest_id = sent.digest_id
		  AND d.reader_id = sent.reader_id`,
		digests, readers)
	if err != nil {
		return fmt.Errorf("note %d digests: %w", len(digests), err)
	}
	return failed.Err()
}

// marked says what the error of the provider means for the event.
func marked(err error) error {
	var tooMany *provider.TooManyError
	switch {
	case errors.As(err, &tooMany): // somebody else uses the mailbox too, past the outbox
		return outbox.RetryAfter(tooMany.After, err)
	case errors.Is(err, provider.ErrNoAddress), errors.Is(err, provider.ErrUnreadable):
		return outbox.Permanent(err)
	}
	return err
}
