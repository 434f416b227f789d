// Package companion answers the messages of users.
package companion

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/threads/events"
	"github.com/outboxgen/outboxgen/examples/threads/thread"
	"github.com/outboxgen/outboxgen/outbox"
)

// Name is the author of the companion's messages.
const Name = "companion"

// Companion posts replies. Any number of goroutines may use it concurrently.
type Companion struct {
	pool   *pgxpool.Pool
	answer func(ctx context.Context, m thread.Message) (string, error)
}

var _ events.Companion = (*Companion)(nil)

// New returns a companion on the database of pool. The caller closes pool. answer writes the text of a reply. It may take
// long, because no transaction is open meanwhile, and it is called again if it fails.
func New(pool *pgxpool.Pool, answer func(ctx context.Context, m thread.Message) (string, error)) *Companion {
	return &Companion{pool: pool, answer: answer}
}

// Reply answers the message in r. The reply has the id of the job, so a job that is delivered twice leads to one reply.
func (c *Companion) Reply(ctx context.Context, job uuid.UUID, r events.ReplyRequested) error {
	if _, err := thread.Get(ctx, c.pool, r.TenantID, r.ThreadID, job); !errors.Is(err, thread.ErrMessageNotFound) {
		return err // nil: answered before
	}
	m, err := thread.Get(ctx, c.pool, r.TenantID, r.ThreadID, r.MessageID)
	if errors.Is(err, thread.ErrMessageNotFound) {
		return outbox.Permanent(err)
	}
	if err != nil {
		return err
	}
	text, err := c.answer(ctx, m)
	if err != nil {
		return fmt.Errorf("find an answer: %w", err)
	}
	err = pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		_, _, err := thread.Post(ctx, tx, thread.Draft{
			TenantID: r.TenantID, ThreadID: r.ThreadID, ID: job, Role: events.RoleCompanion, Author: Name, Text: text,
		})
		return err
	})
	if errors.Is(err, thread.ErrIDTaken) {
		return nil // a concurrent attempt has answered with another text
	}
	return err
}

// Echo is a simple answer: it repeats the message.
func Echo(_ context.Context, m thread.Message) (string, error) {
	return fmt.Sprintf("You say: %q", m.Text), nil
}
