// Package schemadb runs the queries that sqlc compiled in a schema whose name is only known at run time.
package schemadb

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxgen/outboxgen/internal/postgres/pgname"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// marker is the placeholder in every query for the schema of the tables.
const marker = "outbox_schema"

// Schema holds the queries for one schema. It replaces the marker in each query once. Several goroutines may use a
// Schema concurrently.
type Schema struct {
	name   string
	quoted string
	sql    texts // query of sqlc -> query in this schema
}

// texts is a sync.Map. It is an interface, because a generic type inside a struct is compiled again in each package
// that imports the struct: those of users too.
type texts interface {
	Load(key any) (value any, ok bool)
	Store(key, value any)
	Range(call func(key, value any) bool)
}

// schemas caches one Schema per name, for callers that only have the name. Names come from configuration, never from
// requests, so the cache does not grow.
var schemas sync.Map

// Open checks the name of a schema and returns its Schema. The name "" means "outbox".
func Open(name string) (*Schema, error) {
	name = cmp.Or(name, "outbox")
	if known, ok := schemas.Load(name); ok {
		return known.(*Schema), nil
	}
	if err := pgname.Check(name); err != nil {
		return nil, err
	}
	known, _ := schemas.LoadOrStore(name, &Schema{name: name, quoted: pgx.Identifier{name}.Sanitize(), sql: new(sync.Map)})
	return known.(*Schema), nil
}

// Name returns the name of the schema, not quoted.
func (s *Schema) Name() string { return s.name }

// AdvisoryKey returns the key of the advisory lock of this name in s. The SQL function enqueue computes the same.
func (s *Schema) AdvisoryKey(name string) int64 {
	sum := sha256.Sum256([]byte("outboxgen:" + s.name + "/" + name))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// CursorLock is the advisory lock for pruning and for everything that moves cursors other than forward, so that they do
// not overlap.
func (s *Schema) CursorLock() int64 { return s.AdvisoryKey("log lock") }

// On returns the queries of s, which run in tx: the caller's transaction, or one that InTx began. Without a
// transaction, use Each, which begins one.
func (s *Schema) On(tx pgx.Tx) *queries.Queries {
	return queries.New(inSchema{db: tx, schema: s})
}

// Querier is what the statements of an enqueue need of a transaction. That of another driver has no Exec.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// OnQuerier is On for queries that return rows.
func (s *Schema) OnQuerier(tx Querier) *queries.Queries {
	return queries.New(rowsInSchema{db: tx, schema: s})
}

// Text returns query with the marker replaced by the schema.
func (s *Schema) Text(query string) string {
	if text, ok := s.sql.Load(query); ok {
		return text.(string)
	}
	text := strings.ReplaceAll(mutant(query), marker, s.quoted)
	s.sql.Store(query, text)
	return text
}

// Instead returns a Schema that runs text in place of query. Both have sqlc's marker. Tests use it to remove a part of
// a query and check that something fails.
func (s *Schema) Instead(query, text string) *Schema {
	other := &Schema{name: s.name, quoted: s.quoted, sql: new(sync.Map)}
	s.sql.Range(func(key, value any) bool {
		other.sql.Store(key, value)
		return true
	})
	other.sql.Store(query, strings.ReplaceAll(text, marker, s.quoted))
	return other
}

type inSchema struct {
	db     queries.DBTX
	schema *Schema
}

func (i inSchema) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	return i.db.Exec(ctx, i.schema.Text(query), args...)
}

func (i inSchema) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	return i.db.Query(ctx, i.schema.Text(query), args...)
}

func (i inSchema) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	return i.db.QueryRow(ctx, i.schema.Text(query), args...)
}

type rowsInSchema struct {
	db     Querier
	schema *Schema
}

var errNoRows = errors.New("a statement without rows needs Schema.On")

func (r rowsInSchema) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, errNoRows
}

func (r rowsInSchema) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	return r.db.Query(ctx, r.schema.Text(query), args...)
}

func (r rowsInSchema) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	return r.db.QueryRow(ctx, r.schema.Text(query), args...)
}
