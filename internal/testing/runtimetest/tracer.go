package runtimetest

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// Gate stops a pool before each statement that contains a text, and counts these statements.
type Gate struct {
	text   string
	Passed atomic.Int64
	hook   atomic.Pointer[func()] // runs before each, when set
}

// OnPass sets what runs before each statement.
func (g *Gate) OnPass(f func()) { g.hook.Store(&f) }

func (g *Gate) look(sql string) {
	if !strings.Contains(sql, g.text) {
		return
	}
	if f := g.hook.Load(); f != nil {
		(*f)()
	}
	g.Passed.Add(1)
}

func (g *Gate) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	g.look(data.SQL)
	return ctx
}

func (g *Gate) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (g *Gate) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		g.look(q.SQL)
	}
	return ctx
}

func (g *Gate) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (g *Gate) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// NewGate returns another pool on the database of pool, with a gate for statements that contain text.
func NewGate(t testing.TB, pool *pgxpool.Pool, text string) (*pgxpool.Pool, *Gate) {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(pgtest.URL(t, pool))
	require.NoError(t, err)
	g := &Gate{text: text}
	cfg.ConnConfig.Tracer = g
	other, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(other.Close)
	return other, g
}
