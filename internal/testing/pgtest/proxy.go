package pgtest

import (
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// Proxy is between a pool and the server and can become a black hole: connections stay open, but nothing gets through
// any more, and there is no reset.
type Proxy struct {
	target   string
	url      func(host string, port uint16) *pgxpool.Config
	listener net.Listener
	hole     atomic.Bool
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

func NewProxy(t testing.TB, pool *pgxpool.Pool) *Proxy {
	t.Helper()
	cfg := pool.Config().ConnConfig
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &Proxy{target: net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))), listener: listener}
	p.url = func(host string, port uint16) *pgxpool.Config {
		c, err := pgxpool.ParseConfig(URL(t, pool))
		require.NoError(t, err)
		c.ConnConfig.Host, c.ConnConfig.Port, c.ConnConfig.Fallbacks = host, port, nil
		return c
	}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Pool returns a pool that goes through the proxy.
func (p *Proxy) Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	addr := p.listener.Addr().(*net.TCPAddr)
	pool, err := pgxpool.NewWithConfig(t.Context(), p.url(addr.IP.String(), uint16(addr.Port)))
	require.NoError(t, err)
	t.Cleanup(func() {
		p.Cut() // otherwise the pool's last messages are swallowed
		pool.Close()
	})
	return pool
}

// Swallow makes black holes of the open and of new connections.
func (p *Proxy) Swallow() { p.hole.Store(true) }

// Pass lets new connections through again. Swallowed ones stay dead.
func (p *Proxy) Pass() {
	p.hole.Store(false)
}

// Cut closes every connection.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		dead := &atomic.Bool{}
		p.wg.Go(func() { p.copy(server, client, dead) })
		p.wg.Go(func() { p.copy(client, server, dead) })
	}
}

func (p *Proxy) copy(to, from net.Conn, dead *atomic.Bool) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if p.hole.Load() {
			dead.Store(true)
		}
		if n > 0 && !dead.Load() {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if dead.Load() && err == io.EOF {
				return // the other side is not notified
			}
			_ = to.Close()
			return
		}
	}
}
