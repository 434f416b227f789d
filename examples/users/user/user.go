// Package user keeps the users of the service. Each change and its event are written in one transaction that locks the
// user's row, so the events of a user are in the order of their versions.
package user

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/examples/users/events"
)

// Conditions that callers branch on with errors.Is.
var (
	// ErrNotFound says that the tenant does not have the user, or no longer has it.
	ErrNotFound = errors.New("user not found")
	// ErrIDTaken says that the id was used for another user, who may be deleted by now.
	ErrIDTaken = errors.New("id is taken")
)

// User is a person with an account.
type User struct {
	ID, TenantID uuid.UUID
	Version      int64 // counts the changes
	Name, Email  string
	JoinedAt     time.Time
}

// Create writes a user and the event with tx. If the same id, name and address are created again, Create writes nothing and
// returns the existing user. After an error tx must be rolled back.
func Create(ctx context.Context, tx pgx.Tx, tenant, id uuid.UUID, name, email string) (User, error) {
	u := User{ID: id, TenantID: tenant, Name: name, Email: email}
	err := tx.QueryRow(ctx, `
		INSERT INTO users.users (id, tenant_id, name, email)
		VALUES ($1, $2, $3, $4)
		ON CONFLICT (id) DO NOTHING
		RETURNING version, joined_at`, id, tenant, name, email).Scan(&u.Version, &u.JoinedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return repeated(ctx, tx, u)
	}
	if err != nil {
		return User{}, fmt.Errorf("create user: %w", err)
	}
	_, err = events.EnqueueUserCreated(ctx, tx, events.UserCreated{
		TenantID: tenant, UserID: id, UserVersion: u.Version, Profile: u.profile(),
	})
	return u, err
}

// repeated returns the existing user with the id of u.
func repeated(ctx context.Context, tx pgx.Tx, u User) (User, error) {
	found, err := Get(ctx, tx, u.TenantID, u.ID)
	if errors.Is(err, ErrNotFound) || err == nil && (found.Name != u.Name || found.Email != u.Email) {
		return User{}, fmt.Errorf("create user: %w", ErrIDTaken)
	}
	return found, err
}

// Rename changes the name of a user and writes the event with tx. If the user already has the name, Rename writes nothing.
// After an error tx must be rolled back.
func Rename(ctx context.Context, tx pgx.Tx, tenant, id uuid.UUID, name string) (User, error) {
	u := User{ID: id, TenantID: tenant, Name: name}
	err := tx.QueryRow(ctx, `
		UPDATE users.users
		SET name = $3, version = version + 1
		WHERE id = $1 AND tenant_id = $2 AND deleted_at IS NULL AND name <> $3
		RETURNING version, email, joined_at`, id, tenant, name).Scan(&u.Version, &u.Email, &u.JoinedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return Get(ctx, tx, tenant, id)
	}
	if err != nil {
		return User{}, fmt.Errorf("rename user: %w", err)
	}
	// The row is locked until tx ends, so the next change of the user is enqueued and committed later.
	_, err = events.EnqueueUserRenamed(ctx, tx, events.UserRenamed{
		TenantID: tenant, UserID: id, UserVersion: u.Version, Profile: u.profile(),
	})
	return u, err
}

// Delete removes a user's name and address permanently and writes the event with tx. After an error tx must be rolled
// back.
func Delete(ctx context.Context, tx pgx.Tx, tenant, id uuid.UUID) error {
	var version int64
	err := tx.QueryRow(ctx, `
		UPDATE users.users
		SET name = '', email = '', deleted_at = now(), version = version + 1
		WHERE id = $1 AND tenant_id = $2 AND deleted_at IS NULL
		RETURNING version`, id, tenant).Scan(&version)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("delete user: %w", err)
	}
	_, err = events.EnqueueUserDeleted(ctx, tx, events.UserDeleted{TenantID: tenant, UserID: id, UserVersion: version})
	return err
}

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Get returns a user of the tenant, or ErrNotFound.
func Get(ctx context.Context, db Querier, tenant, id uuid.UUID) (User, error) {
	u := User{ID: id, TenantID: tenant}
	err := db.QueryRow(ctx, `
		SELECT version, name, email, joined_at
		FROM users.users
		WHERE id = $1 AND tenant_id = $2 AND deleted_at IS NULL`, id, tenant).Scan(&u.Version, &u.Name, &u.Email, &u.JoinedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return User{}, ErrNotFound
	}
	if err != nil {
		return User{}, fmt.Errorf("read user: %w", err)
	}
	return u, nil
}

// List returns the users of a tenant, ordered by id.
func List(ctx context.Context, db Querier, tenant uuid.UUID) ([]User, error) {
	rows, err := db.Query(ctx, `
		SELECT id, tenant_id, version, name, email, joined_at
		FROM users.users
		WHERE tenant_id = $1 AND deleted_at IS NULL
		ORDER BY id`, tenant)
	if err != nil {
		return nil, fmt.Errorf("list users: %w", err)
	}
	users, err := pgx.CollectRows(rows, pgx.RowToStructByPos[User])
	if err != nil {
		return nil, fmt.Errorf("list users: %w", err)
	}
	return users, nil
}

func (u User) profile() events.Profile {
	return events.Profile{Name: u.Name, Email: u.Email, JoinedAt: u.JoinedAt}
}
