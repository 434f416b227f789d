package doorbell

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Loan lends the listening connection to the owner of the doorbell, together with what came through it: a ring or an
// answer. The backend of this connection is awake. The first statement of one that has slept takes as long as a claim.
//
// Until Return, nobody else uses the connection: rings that arrive meanwhile follow, and so does the answer to a request.
// A nil Loan lends nothing.
type Loan struct {
	conn *pgx.Conn

	mu           sync.Mutex
	taken, ended bool
	over         chan struct{} // closed at the end
}

// Take returns the connection, which is the caller's until Return. It returns nil if there is none, it was withdrawn, or
// it is lost.
func (l *Loan) Take() *pgx.Conn {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || l.conn.IsClosed() {
		return nil
	}
	l.taken = true
	return l.conn
}

// Return ends the loan. The owner of the doorbell must call it for every loan, whether it has taken the connection or
// not. Any call after the first one does nothing.
func (l *Loan) Return() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end()
}

// withdraw ends the loan unless the connection was taken.
func (l *Loan) withdraw() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.taken {
		l.end()
	}
}

func (l *Loan) end() {
	if !l.ended {
		l.ended = true
		close(l.over)
	}
}

// lend lends conn with what give tells the owner, and waits until it is returned. If ctx ends before it was taken, it is
// withdrawn: the owner has another request.
func (b *doorbell) lend(ctx context.Context, conn *pgx.Conn, give func(*Loan)) error {
	if !b.lends {
		give(nil)
		return nil
	}
	loan := &Loan{conn: conn, over: make(chan struct{})}
	give(loan)
	select {
	case <-loan.over:
	case <-ctx.Done():
		loan.withdraw()
		<-loan.over
	}
	return b.settle(conn)
}

// settle ends a transaction that has failed on conn while it was lent.
func (b *doorbell) settle(conn *pgx.Conn) error {
	const idle = 'I'
	if conn.IsClosed() || conn.PgConn().TxStatus() == idle {
		return nil // the next statement finds out whether it is lost
	}
	ctx, cancel := context.WithTimeout(b.dbCtx, Timeout)
	defer cancel()
	if _, err := conn.Exec(ctx, "ROLLBACK"); err != nil {
		return fmt.Errorf("roll back what a loan of the listening connection has left: %w", err)
	}
	return nil
}
