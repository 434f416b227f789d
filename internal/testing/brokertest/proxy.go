package brokertest

import (
	"fmt"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/freeport"
)

// Proxy stands between a client and a server.
type Proxy struct {
	t      testing.TB
	target string
	addr   string
	done   sync.WaitGroup

	mu       sync.Mutex
	moved    *sync.Cond
	listener net.Listener
	conns    map[net.Conn]bool
	hung     bool
	held     int // what it has read and does not let through
}

// NewProxy returns a proxy of the server at target, which ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	port, err := freeport.Find() // which stays its own while it is down
	require.NoError(t, err)
	p := &Proxy{t: t, target: target, addr: fmt.Sprintf("127.0.0.1:%d", port), conns: make(map[net.Conn]bool)}
	p.moved = sync.NewCond(&p.mu)
	p.Up()
	t.Cleanup(func() {
		p.Cut(true)
		p.done.Wait()
	})
	return p
}

// URL returns the URL of a user of RabbitMQ through the proxy.
func (p *Proxy) URL(user string) string {
	u := url.URL{Scheme: "amqp", User: url.UserPassword(user, user), Host: p.addr, Path: "/"}
	return u.String()
}

// Up accepts connections.
func (p *Proxy) Up() {
	require.NoError(p.t, freeport.Reclaim(p.addr))
	l, err := net.Listen("tcp", p.addr)
	require.NoError(p.t, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener = l
	p.done.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", p.target)
			if err != nil {
				_ = from.Close()
				continue
			}
			p.mu.Lock()
			p.conns[from], p.conns[to] = true, true
			p.mu.Unlock()
			p.done.Go(func() { p.pump(from, to) })
			p.done.Go(func() { p.pump(to, from) })
		}
	})
}

// Cut ends all connections and, if down is set, refuses new ones.
func (p *Proxy) Cut(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if down {
		_ = p.listener.Close()
	}
	for c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
	p.hung = false
	p.moved.Broadcast()
}

// Hang lets nothing through.
func (p *Proxy) Hang() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hung = true
}

// Release lets everything through again.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hung = false
	p.moved.Broadcast()
}

// Holds reports whether it has got something that it does not let through.
func (p *Proxy) Holds() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hung && p.held > 0
}

func (p *Proxy) pump(from, to net.Conn) {
	defer func() { _, _ = from.Close(), to.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.held++
		for p.hung {
			p.moved.Wait()
		}
		p.held--
		p.mu.Unlock()
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
