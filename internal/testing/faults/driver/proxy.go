package driver

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// proxy is between processes and a server, and does to their connections what networks do.
type proxy struct {
	target   string
	listener net.Listener
	busy     sync.WaitGroup

	mu      sync.Mutex
	links   map[*link]bool
	armed   *cut
	swallow [2]bool // requests, replies
	slow    time.Duration
	refuse  bool
}

// The directions of what a proxy passes on.
const (
	requests = 0
	replies  = 1
)

// link is a connection through a proxy. dead ones pass nothing on any more in a direction, and no one notices.
type link struct {
	client, server net.Conn
	dead           [2]bool
}

// cut ends the first link that sends something in a direction, when it has sent so many bytes from then on.
type cut struct {
	direction, left int
	link            *link
	done            chan struct{}
}

func newProxy(target string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start proxy: %w", err)
	}
	p := &proxy{target: target, listener: l, links: make(map[*link]bool)}
	p.busy.Go(p.accept)
	return p, nil
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) close() {
	_ = p.listener.Close()
	p.cutAll()
	p.busy.Wait()
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuse := p.refuse
		p.mu.Unlock()
		if refuse {
			reset(client)
			continue
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			reset(client)
			continue
		}
		l := &link{client: client, server: server}
		p.mu.Lock()
		p.links[l] = true
		p.mu.Unlock()
		p.busy.Go(func() { p.copy(l, requests, server, client) })
		p.busy.Go(func() { p.copy(l, replies, client, server) })
	}
}

// reset closes a connection so that the other side sees an error, and not an end.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

func (p *proxy) copy(l *link, direction int, to, from net.Conn) {
	buffer := make([]byte, 16<<10)
	for {
		n, err := from.Read(buffer)
		pass, end, slow := p.allow(l, direction, n)
		if slow > 0 {
			time.Sleep(slow)
		}
		if pass > 0 {
			if _, werr := to.Write(buffer[:pass]); werr != nil {
				err = errors.Join(err, werr)
			}
		}
		if end || err != nil {
			p.end(l)
			return
		}
	}
}

// allow says how many of n bytes a link passes on, and whether it ends after them.
func (p *proxy) allow(l *link, direction, n int) (pass int, end bool, slow time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.dead[direction] = l.dead[direction] || p.swallow[direction]
	if l.dead[direction] {
		return 0, false, 0
	}
	if c := p.armed; c != nil && n > 0 && c.direction == direction && (c.link == nil || c.link == l) {
		c.link = l
		if c.left <= n {
			p.armed = nil
			close(c.done)
			return c.left, true, 0
		}
		c.left -= n
	}
	return n, false, p.slow
}

func (p *proxy) end(l *link) {
	p.mu.Lock()
	delete(p.links, l)
	if p.armed != nil && p.armed.link == l {
		p.armed.link = nil // another one is cut
	}
	p.mu.Unlock()
	reset(l.client)
	reset(l.server)
}

// cutAfter cuts a connection after k more bytes in a direction, or any connection if there is too little to cut.
func (p *proxy) cutAfter(direction, k int, patience time.Duration) {
	c := &cut{direction: direction, left: k, done: make(chan struct{})}
	p.mu.Lock()
	p.armed = c
	p.mu.Unlock()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-c.done:
		return
	case <-timeout.C:
	}
	p.mu.Lock()
	p.armed = nil
	var any *link
	for l := range p.links {
		any = l
		break
	}
	p.mu.Unlock()
	if any != nil {
		p.end(any)
	}
}

// hole swallows what goes in some directions for a while. Afterwards the connections that have lost something are reset.
func (p *proxy) hole(swallow [2]bool, length time.Duration) {
	p.mu.Lock()
	p.swallow = swallow
	p.mu.Unlock()
	time.Sleep(length)
	p.mu.Lock()
	p.swallow = [2]bool{}
	var dead []*link
	for l := range p.links {
		if l.dead[requests] || l.dead[replies] {
			dead = append(dead, l)
		}
	}
	p.mu.Unlock()
	for _, l := range dead {
		p.end(l)
	}
}

// crawl delays all that goes through for a while.
func (p *proxy) crawl(each, length time.Duration) {
	p.set(func() { p.slow = each })
	time.Sleep(length)
	p.set(func() { p.slow = 0 })
}

// deny resets new connections for a while, and all that there are.
func (p *proxy) deny(length time.Duration) {
	p.set(func() { p.refuse = true })
	p.cutAll()
	time.Sleep(length)
	p.set(func() { p.refuse = false })
}

func (p *proxy) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func (p *proxy) cutAll() {
	p.mu.Lock()
	var all []*link
	for l := range p.links {
		all = append(all, l)
	}
	p.mu.Unlock()
	for _, l := range all {
		p.end(l)
	}
}
