package pgtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// failing records the errors of a test that fails on purpose.
type failing struct {
	testing.TB
	errors []string
}

func (f *failing) Errorf(format string, args ...any) {
	f.errors = append(f.errors, fmt.Sprintf(format, args...))
}

// TestConnectionInUseEndsTheTest: closing a pool would wait forever for a connection in use, and so would the test.
func TestConnectionInUseEndsTheTest(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), Empty(t))
	require.NoError(t, err)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	f := &failing{TB: t}
	closePool(f, pool, 50*time.Millisecond)
	require.Equal(t, []string{"pgtest: 1 connections are in use after the test: a transaction, rows or a connection was not closed"}, f.errors)
	require.NoError(t, tx.Rollback(t.Context()))
}
