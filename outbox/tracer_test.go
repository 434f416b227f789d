package outbox_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
)

// gate stops a pool in front of statements that hold a text, and counts them.
type gate struct {
	text   string
	passed atomic.Int64
	hook   atomic.Pointer[func()] // runs before each, when set
}

// onPass sets what runs before each statement.
func (g *gate) onPass(f func()) { g.hook.Store(&f) }

func (g *gate) look(sql string) {
	if !strings.Contains(sql, g.text) {
		return
	}
	if f := g.hook.Load(); f != nil {
		(*f)()
	}
	g.passed.Add(1)
}

func (g *gate) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	g.look(data.SQL)
	return ctx
}

func (g *gate) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (g *gate) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		g.look(q.SQL)
	}
	return ctx
}

func (g *gate) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (g *gate) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// gated returns another pool on the database of pool, with a gate in front of statements that hold text.
func gated(t testing.TB, pool *pgxpool.Pool, text string) (*pgxpool.Pool, *gate) {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(pgtest.URL(t, pool))
	require.NoError(t, err)
	g := &gate{text: text}
	cfg.ConnConfig.Tracer = g
	other, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(other.Close)
	return other, g
}
