package thread

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/examples/threads/events"
	"github.com/outboxgen/outboxgen/outbox"
)

// Draft is a message to post. A second Draft with the same ID is the same message.
type Draft struct {
	TenantID, ThreadID, ID uuid.UUID
	Role                   events.Role
	Author, Text           string
}

// Post writes a message and its event with tx, and reports true. If the thread already has a message with the id of d, Post
// writes nothing and returns that message and false, or ErrIDTaken if its content is different. After an error tx must be
// rolled back.
//
// The lock of the thread, which tx holds until it ends, creates the order: the next post waits for it, and so gets the next
// number, enqueues later and commits later.
func Post(ctx context.Context, tx pgx.Tx, d Draft) (Message, bool, error) {
	m := Message{ID: d.ID, Role: d.Role, Author: d.Author, Text: d.Text}
	err := tx.QueryRow(ctx, `
		SELECT last_number + 1
		FROM chat.threads
		WHERE id = $1 AND tenant_id = $2
		FOR UPDATE`, d.ThreadID, d.TenantID).Scan(&m.Number)
	if errors.Is(err, pgx.ErrNoRows) {
		return Message{}, false, ErrThreadNotFound
	}
	if err != nil {
		return Message{}, false, fmt.Errorf("lock thread: %w", err)
	}

	err = tx.QueryRow(ctx, `
		INSERT INTO chat.messages (thread_id, number, id, role, author, text)
		VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (thread_id, id) DO NOTHING
		RETURNING posted_at`,
		d.ThreadID, m.Number, m.ID, m.Role, m.Author, m.Text).Scan(&m.PostedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		m, err = repeated(ctx, tx, d)
		return m, false, err
	}
	if err != nil {
		return Message{}, false, fmt.Errorf("insert message: %w", err)
	}
	if _, err := tx.Exec(ctx, "UPDATE chat.threads SET last_number = $2 WHERE id = $1", d.ThreadID, m.Number); err != nil {
		return Message{}, false, fmt.Errorf("number message: %w", err)
	}

	receipt, err := events.EnqueueMessageCreated(ctx, tx, created(d, m), outbox.WithTenant(d.TenantID))
	if err != nil {
		return Message{}, false, err
	}
	if receipt.Duplicate {
		// Messages are kept longer than their events, so somebody has deleted this message by hand.
		return Message{}, false, fmt.Errorf("post message: event %s exists without its message", receipt.ID)
	}
	return m, true, nil
}

// repeated returns the existing message with the id of d.
func repeated(ctx context.Context, tx pgx.Tx, d Draft) (Message, error) {
	m, err := Get(ctx, tx, d.TenantID, d.ThreadID, d.ID)
	if err != nil {
		return Message{}, err
	}
	if m.Role != d.Role || m.Author != d.Author || m.Text != d.Text {
		return Message{}, fmt.Errorf("post message: %w", ErrIDTaken)
	}
	return m, nil
}

// created returns the event of m.
func created(d Draft, m Message) events.MessageCreated {
	return events.MessageCreated{
		TenantID: d.TenantID, ThreadID: d.ThreadID, MessageID: m.ID, Number: m.Number,
		Role: m.Role, Author: m.Author, Text: m.Text, PostedAt: m.PostedAt,
	}
}
