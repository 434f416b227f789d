package pgtest

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/campaign"
)

// EveryNth byte offset of a conversation is cut at: each one in a campaign. The usual number is prime, so that the cuts
// fall at different places of messages of the same length.
var EveryNth = campaign.Of(37, 1)

// Scissors cut the connections of a pool after a number of bytes in one direction.
type Scissors struct {
	mu      sync.Mutex
	armed   bool
	Once    bool // cut one connection, but not those that replace it
	replies bool // cut what the server sends, otherwise what the client sends
	left    int
	cut     bool
}

// Arm cuts after n bytes from now on.
func (s *Scissors) Arm(replies bool, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed, s.replies, s.left, s.cut = true, replies, n, false
}

// Disarm reports whether the connection was cut since arm.
func (s *Scissors) Disarm() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = false
	return s.cut
}

// allow takes up to n of the remaining bytes, and reports whether the cut comes after them.
func (s *Scissors) allow(replies bool, n int) (allowed int, cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.armed || s.replies != replies || s.Once && s.cut {
		return n, false
	}
	allowed = min(n, s.left)
	s.left -= allowed
	s.cut = s.cut || allowed < n
	return allowed, allowed < n
}

var errCut = errors.New("connection cut")

type cutConn struct {
	net.Conn
	scissors *Scissors
}

func (c *cutConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	n, cut := c.scissors.allow(true, n)
	if cut {
		_ = c.Close()
		return n, errCut
	}
	return n, err
}

func (c *cutConn) Write(p []byte) (int, error) {
	allowed, cut := c.scissors.allow(false, len(p))
	n, err := c.Conn.Write(p[:allowed])
	if cut {
		_ = c.Close()
		return n, errCut
	}
	return n, err
}

// Cuttable returns a pool with one connection on the database of pool. s can cut that connection.
func Cuttable(t *testing.T, pool *pgxpool.Pool) (*pgxpool.Pool, *Scissors) {
	t.Helper()
	s := &Scissors{}
	cfg := pool.Config()
	cfg.MaxConns = 1
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &cutConn{Conn: conn, scissors: s}, nil
	}
	cut, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(cut.Close)
	return cut, s
}
