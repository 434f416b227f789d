package kafka_test

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// wire is the network in front of a cluster. It can tamper with replies to produce requests. The zero value does not.
type wire struct {
	mu    sync.Mutex
	tamps []tamper // one per coming reply
	held  chan struct{}
	hits  int
	wants int
}

// tamper is what the wire does with a reply.
type tamper int

const (
	pass    tamper = iota
	drop           // the reply and the connection are lost
	late           // the reply comes after that of another broker
	foreign        // the reply has the number of another request, as if two were exchanged
)

// next makes the wire tamper with the coming replies, in order.
func (w *wire) next(t ...tamper) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tamps = append(w.tamps, t...)
	for _, one := range t {
		if one != pass {
			w.wants++
		}
	}
}

// asked returns how often the wire was asked to tamper. count returns how often it did.
func (w *wire) asked() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wants
}

func (w *wire) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hits
}

func (w *wire) listen(network, address string) (net.Listener, error) {
	l, err := net.Listen(network, address)
	return wireListener{l, w}, err
}

type wireListener struct {
	net.Listener
	w *wire
}

func (l wireListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, w: l.w}, nil
}

// conn is the broker's end of a connection. It reads requests along, to know which request a reply answers.
type conn struct {
	net.Conn
	w *wire

	mu      sync.Mutex
	header  []byte // of the current request, up to its API key
	rest    int    // bytes of the current request that are still to come
	produce bool   // the last request is a produce request
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	for b := p[:n]; len(b) > 0; {
		if len(c.header) < 6 {
			c.header = append(c.header, b[0])
			b = b[1:]
			if len(c.header) == 6 {
				c.rest = int(binary.BigEndian.Uint32(c.header)) - 2
				c.produce = kmsg.Key(binary.BigEndian.Uint16(c.header[4:])) == kmsg.Produce
			}
			continue
		}
		take := min(len(b), c.rest)
		b, c.rest = b[take:], c.rest-take
		if c.rest == 0 {
			c.header = c.header[:0]
		}
	}
	return n, err
}

var errDropped = errors.New("the reply is dropped")

func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	produce := c.produce
	c.mu.Unlock()
	if !produce {
		return c.Conn.Write(p)
	}
	switch c.w.take() {
	case drop:
		_ = c.Conn.Close()
		return 0, errDropped
	case late:
		c.w.hold()
	case foreign:
		p = append([]byte(nil), p...)
		p[7]++
	}
	defer c.w.release()
	return c.Conn.Write(p)
}

func (w *wire) take() tamper {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.tamps) == 0 {
		return pass
	}
	t := w.tamps[0]
	w.tamps = w.tamps[1:]
	if t != pass {
		w.hits++
	}
	return t
}

// hold waits a moment, so that another reply can go first.
func (w *wire) hold() {
	w.mu.Lock()
	if w.held == nil {
		w.held = make(chan struct{})
	}
	held := w.held
	w.mu.Unlock()
	select {
	case <-held:
	case <-time.After(50 * time.Millisecond):
	}
}

func (w *wire) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held != nil {
		close(w.held)
		w.held = nil
	}
}
