package doorbell

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// loanOf lends a connection to a new database.
func loanOf(t *testing.T) *Loan {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pgtest.URL(t, pgtest.Database(t)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return &Loan{conn: conn, over: make(chan struct{})}
}

func (l *Loan) isOver() bool {
	select {
	case <-l.over:
		return true
	default:
		return false
	}
}

func TestLoan(t *testing.T) {
	t.Parallel()
	var none *Loan
	none.Return()
	require.Nil(t, none.Take())

	l := loanOf(t)
	require.Same(t, l.conn, l.Take())
	require.Same(t, l.conn, l.Take(), "it is the caller's until it is returned")
	l.withdraw()
	require.False(t, l.isOver(), "it was taken")
	l.Return()
	l.Return()
	require.True(t, l.isOver())
	require.Nil(t, l.Take())

	l = loanOf(t)
	l.withdraw()
	require.True(t, l.isOver())
	require.Nil(t, l.Take())
	l.Return()

	l = loanOf(t)
	require.NoError(t, l.conn.Close(t.Context()))
	require.Nil(t, l.Take(), "it is lost")
	require.False(t, l.isOver(), "the owner returns it nevertheless")
}
