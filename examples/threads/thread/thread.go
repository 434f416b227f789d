// Package thread keeps the threads of a chat. A message and its event are written in one transaction that locks their
// thread, so listeners get the messages of a thread in the order of their numbers.
package thread

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/examples/threads/events"
)

// Conditions that callers branch on with errors.Is.
var (
	// ErrThreadNotFound says that the tenant does not have the thread.
	ErrThreadNotFound = errors.New("thread not found")
	// ErrMessageNotFound says that the thread does not have the message.
	ErrMessageNotFound = errors.New("message not found")
	// ErrIDTaken says that the id was used for a thread of another tenant, or for another message.
	ErrIDTaken = errors.New("id is taken")
)

// Message is one message of a thread.
type Message struct {
	ID       uuid.UUID   `json:"id"`
	Number   int64       `json:"number"` // counts the messages of the thread
	Role     events.Role `json:"role"`
	Author   string      `json:"author"`
	Text     string      `json:"text"`
	PostedAt time.Time   `json:"posted_at"`
}

// Of returns the message in an event.
func Of(p events.MessageCreated) Message {
	return Message{ID: p.MessageID, Number: p.Number, Role: p.Role, Author: p.Author, Text: p.Text, PostedAt: p.PostedAt}
}

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Create writes a thread of tenant with tx, and reports true. If the thread exists, Create writes nothing and returns
// false, or ErrIDTaken if it belongs to another tenant.
func Create(ctx context.Context, tx pgx.Tx, tenant, id uuid.UUID) (bool, error) {
	tag, err := tx.Exec(ctx, `
		INSERT INTO chat.threads (id, tenant_id)
		VALUES ($1, $2)
		ON CONFLICT (id) DO NOTHING`, id, tenant)
	if err != nil {
		return false, fmt.Errorf("create thread: %w", err)
	}
	if tag.RowsAffected() > 0 {
		return true, nil
	}
	err = Find(ctx, tx, tenant, id)
	if errors.Is(err, ErrThreadNotFound) {
		err = fmt.Errorf("create thread: %w", ErrIDTaken)
	}
	return false, err
}

// Find returns ErrThreadNotFound unless tenant has the thread.
func Find(ctx context.Context, db Querier, tenant, id uuid.UUID) error {
	var found bool
	err := db.QueryRow(ctx, "SELECT EXISTS (SELECT FROM chat.threads WHERE id = $1 AND tenant_id = $2)", id, tenant).Scan(&found)
	if err != nil {
		return fmt.Errorf("find thread: %w", err)
	}
	if !found {
		return ErrThreadNotFound
	}
	return nil
}

// After returns the messages of a tenant's thread after the one with the given number, at most limit of them.
func After(ctx context.Context, db Querier, tenant, id uuid.UUID, number int64, limit int) ([]Message, error) {
	rows, err := db.Query(ctx, `
		SELECT m.id, m.number, m.role, m.author, m.text, m.posted_at
		FROM chat.messages AS m
		JOIN chat.threads AS t ON t.id = m.thread_id
		WHERE t.tenant_id = $1 AND m.thread_id = $2 AND m.number > $3
		ORDER BY m.number
		LIMIT $4`, tenant, id, number, limit)
	if err != nil {
		return nil, fmt.Errorf("read messages: %w", err)
	}
	messages, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Message])
	if err != nil {
		return nil, fmt.Errorf("read messages: %w", err)
	}
	return messages, nil
}

// Get returns one message of a tenant's thread, or ErrMessageNotFound.
func Get(ctx context.Context, db Querier, tenant, id, message uuid.UUID) (Message, error) {
	m := Message{ID: message}
	err := db.QueryRow(ctx, `
		SELECT m.number, m.role, m.author, m.text, m.posted_at
		FROM chat.messages AS m
		JOIN chat.threads AS t ON t.id = m.thread_id
		WHERE t.tenant_id = $1 AND m.thread_id = $2 AND m.id = $3`,
		tenant, id, message).Scan(&m.Number, &m.Role, &m.Author, &m.Text, &m.PostedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return Message{}, ErrMessageNotFound
	}
	if err != nil {
		return Message{}, fmt.Errorf("read message: %w", err)
	}
	return m, nil
}
