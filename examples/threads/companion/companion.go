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

// Name is how the companion signs.
const Name = "companion"

// Companion posts replies. It may be used from any number of goroutines.
type Companion struct {
	pool   *pgxpool.Pool
	answer func(ctx context.Context, m thread.Message) (string, error)
}

var _ events.Companion = (*Companion)(nil)

// New returns a companion on the database of pool, which stays the caller's. answer finds the words; it may take
// its time, since no transaction is open meanwhile, and is called again when it fails.
func New(pool *pgxpool.Pool, answer func(ctx context.Context, m thread.Message) (string, error)) *Companion {
	return &Companion{pool: pool, answer: answer}
}

// Reply answers the message that r asks for. The reply has the id of the job, so that a job that is delivered
// twice leads to one reply.
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
		return nil // another attempt, under way at the same time, has answered in other words
	}
	return err
}

// Echo is an answer for want of a better one: it says the message back.
func Echo(_ context.Context, m thread.Message) (string, error) {
	return fmt.Sprintf("You say: %q", m.Text), nil
}
