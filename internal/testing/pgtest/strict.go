package pgtest

import (
	"context"
	"maps"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// awkward are defaults that a role may have. None of them may change what the runtime's statements do. jit_above_cost
// makes PostgreSQL compile everything that it can.
var awkward = map[string]string{
	"default_transaction_isolation":  "serializable",
	"default_transaction_deferrable": "on",
	"synchronous_commit":             "off",
	"plan_cache_mode":                "force_custom_plan",
	"jit":                            "on",
	"jit_above_cost":                 "1",
	"enable_nestloop":                "off",
	"enable_indexscan":               "off",
	"search_path":                    "public, pg_catalog",
	"datestyle":                      "SQL, DMY",
	"intervalstyle":                  "sql_standard",
	"timezone":                       "Pacific/Chatham",
	"bytea_output":                   "escape",
}

// Strict returns another pool on the database of pool, for the runtime's code only. Its sessions have awkward defaults,
// including SERIALIZABLE, and the test fails if a statement runs outside a transaction that was begun with an explicit
// isolation level. The pool is closed after the test.
func Strict(t testing.TB, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(URL(t, pool))
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	cfg.MaxConns = poolSize
	maps.Copy(cfg.ConnConfig.RuntimeParams, awkward)
	cfg.ConnConfig.Tracer = &strict{complain: t.Errorf, levels: make(map[*pgx.Conn]bool)}
	strict, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatalf("pgtest: open pool: %v", err)
	}
	t.Cleanup(func() { closePool(t, strict, cleanupTimeout) })
	return strict
}

// strict reports statements that run outside a transaction with an explicit isolation level.
type strict struct {
	complain func(format string, args ...any)
	mu       sync.Mutex
	levels   map[*pgx.Conn]bool // whether a transaction with a level is open
}

// leveled matches the start of a transaction with an explicit isolation level.
var leveled = regexp.MustCompile(`(?i)^begin isolation level (read committed|repeatable read)`)

// free are the beginnings of statements that need no transaction.
var free = []string{"listen ", "-- ping"}

func (s *strict) look(conn *pgx.Conn, sql string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	word := strings.ToLower(strings.TrimSpace(sql))
	switch {
	case strings.HasPrefix(word, "begin"):
		if s.levels[conn] = leveled.MatchString(word); s.levels[conn] {
			return
		}
	case s.levels[conn]:
		if word == "commit" || word == "rollback" {
			delete(s.levels, conn)
		}
		return
	default:
		for _, f := range free {
			if strings.HasPrefix(word, f) {
				return
			}
		}
	}
	s.complain("pgtest: not in a transaction with an isolation level: %s", sql)
}

func (s *strict) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.look(conn, data.SQL)
	return ctx
}

func (s *strict) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *strict) TraceBatchStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		s.look(conn, q.SQL)
	}
	return ctx
}

func (s *strict) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (s *strict) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
