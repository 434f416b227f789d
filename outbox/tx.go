package outbox

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/seal"
)

// Tx is the transaction that an enqueue writes with. A pgx.Tx is one. Module sqltx makes one of a transaction of
// database/sql, and so of sqlx, GORM, bun and ent.
//
// An enqueue calls Query and QueryRow only: it never ends the transaction. Commit and Rollback are there because a pool
// and a connection do not have them, so that neither compiles in place of a transaction.
type Tx interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// recorder is a transaction of package outboxfake, which records events in place of PostgreSQL.
type recorder interface {
	// RecordEvents records ms, which were checked and have the ids in receipts. It takes their dedupe keys in the order of
	// order, which are indexes of ms, and marks the duplicates in receipts. If it returns an error, nothing is recorded.
	RecordEvents(ctx context.Context, db *schemadb.Schema, ms []Message, receipts []Receipt, order []int) error
	// Keyring seals what is to be sealed if the caller has no keyring.
	Keyring() seal.Keyring
}
