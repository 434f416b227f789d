// Package dbschema runs the queries that sqlc has compiled in a schema whose name is only known at run time.
package dbschema

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxgen/outboxgen/internal/dbsqlc"
	"github.com/outboxgen/outboxgen/internal/pgname"
)

// marker stands in every query for the schema of the tables.
const marker = "outbox_schema"

// Schema is what the name of a schema stands for: the queries with the marker replaced, each once. For use by
// several goroutines.
type Schema struct {
	name   string
	quoted string
	sql    sync.Map // query as sqlc has it -> query in this schema
}

// schemas caches one Schema a name, for callers that have the name alone. Names come from configuration, never
// from requests, so it does not grow.
var schemas sync.Map

// Open checks the name of a schema, "" meaning "outbox", and returns what it stands for.
func Open(name string) (*Schema, error) {
	if name == "" {
		name = "outbox"
	}
	if known, ok := schemas.Load(name); ok {
		return known.(*Schema), nil
	}
	if err := pgname.Check(name); err != nil {
		return nil, fmt.Errorf("open schema: %w", err)
	}
	known, _ := schemas.LoadOrStore(name, &Schema{name: name, quoted: pgx.Identifier{name}.Sanitize()})
	return known.(*Schema), nil
}

// Name returns the name of the schema, not quoted.
func (s *Schema) Name() string { return s.name }

// AdvisoryKey returns the key of the advisory lock of this name in s.
func (s *Schema) AdvisoryKey(name string) int64 {
	h := fnv.New64a()
	h.Write([]byte("outboxgen:" + s.name + "/" + name))
	return int64(h.Sum64())
}

// CursorLock is the advisory lock that keeps apart what moves cursors other than forward, and pruning.
func (s *Schema) CursorLock() int64 { return s.AdvisoryKey("log lock") }

// On returns the queries in s, run in tx: the caller's, or one that InTx began. Where there is no transaction, Each makes one.
func (s *Schema) On(tx pgx.Tx) *dbsqlc.Queries {
	return dbsqlc.New(inSchema{db: tx, schema: s})
}

// Text returns query with the schema in place.
func (s *Schema) Text(query string) string {
	if text, ok := s.sql.Load(query); ok {
		return text.(string)
	}
	text := strings.ReplaceAll(query, marker, s.quoted)
	s.sql.Store(query, text)
	return text
}

// Instead returns a Schema that runs text, in the words of sqlc, where s runs query: tests take a part of a query out, to see
// what it is for.
func (s *Schema) Instead(query, text string) *Schema {
	other := &Schema{name: s.name, quoted: s.quoted}
	s.sql.Range(func(key, value any) bool {
		other.sql.Store(key, value)
		return true
	})
	other.sql.Store(query, strings.ReplaceAll(text, marker, s.quoted))
	return other
}

type inSchema struct {
	db     dbsqlc.DBTX
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
