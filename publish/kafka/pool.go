package kafka

import (
	"context"
	"slices"
	"sync"

	"github.com/outboxgen/outboxgen/outbox"
)

// home is where a record goes.
type home struct {
	topic     string
	partition int32
}

// lane is a key at a topic.
type lane struct{ topic, key string }

// pool has the producers, each used by one call at a time, and knows which of them a lane is bound to. A record that was
// given up may be on its way all the same. The cluster refuses it once its own producer, by then with a higher epoch, has
// written to the same partition; what another producer writes does not keep it out. So the lane stays with that producer
// until then. The zero value needs create.
type pool struct {
	create func() (*client, error)

	mu      sync.Mutex
	clients []*client
	bound   map[lane]*binding
}

// binding is a lane with records in doubt at some homes of one producer.
type binding struct {
	holder *client
	homes  map[home]bool
}

// share is a part of the events of a call that goes through one producer; a nil holder stands for any.
type share struct {
	holder *client
	events []int
}

// shares splits events by the producers that their lanes are bound to. The events with one key stay together, in their
// order, also when they go to several topics.
func (p *pool) shares(events []outbox.Outgoing) []share {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.bound) == 0 {
		return []share{{}}
	}
	holders := make(map[string]*client) // by key
	for _, o := range events {
		if b := p.bound[lane{o.Destination, o.Key}]; b != nil && holders[o.Key] == nil {
			holders[o.Key] = b.holder
		}
	}
	var shares []share
	at := make(map[*client]int)
	for i, o := range events {
		holder := holders[o.Key]
		n, there := at[holder]
		if !there {
			n = len(shares)
			at[holder] = n
			shares = append(shares, share{holder: holder})
		}
		shares[n].events = append(shares[n].events, i)
	}
	return shares
}

// take waits until holder is free, or returns any producer that is, a new one if need be. Nobody else has it until
// release.
func (p *pool) take(ctx context.Context, holder *client) (*client, error) {
	if holder != nil {
		select {
		case holder.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if !holder.closed {
			return holder, nil
		}
		<-holder.turn // it was given up meanwhile, and binds nobody any more
	}
	p.mu.Lock()
	for _, c := range slices.Backward(p.clients) {
		if c.broken {
			continue
		}
		select {
		case c.turn <- struct{}{}:
			p.mu.Unlock()
			return c, nil
		default:
		}
	}
	p.mu.Unlock()
	c, err := p.create()
	if err != nil {
		return nil, err
	}
	c.turn <- struct{}{}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clients = append(p.clients, c)
	return c, nil
}

// release gives a producer back. One that is broken is kept as long as keys are bound to it, and used for them alone.
func (p *pool) release(c *client) {
	p.mu.Lock()
	c.broken = c.broken || c.unfit
	if c.closed {
		p.unbind(c)
	}
	gone := c.broken && len(c.doubts) == 0
	if gone {
		p.clients = slices.DeleteFunc(p.clients, func(other *client) bool { return other == c })
	}
	p.mu.Unlock()
	if gone {
		c.close()
	}
	<-c.turn
}

// close disconnects all producers, which nobody uses any more.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.clients {
		c.close()
	}
	p.clients, p.bound = nil, nil
}

// doubt binds a lane to c, because a record of it may be on its way to h.
func (p *pool) doubt(c *client, key string, h home) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := lane{h.topic, key}
	b := p.bound[of]
	if b == nil || b.holder != c {
		b = &binding{holder: c, homes: make(map[home]bool)}
		if p.bound == nil {
			p.bound = make(map[lane]*binding)
		}
		p.bound[of] = b
	}
	b.homes[h] = true
	if c.doubts == nil {
		c.doubts = make(map[home]map[string]bool)
	}
	if c.doubts[h] == nil {
		c.doubts[h] = make(map[string]bool)
	}
	c.doubts[h][key] = true
}

// wrote notes that c has written to h: nothing of it that is late can be written there any more.
func (p *pool) wrote(c *client, h home) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key := range c.doubts[h] {
		p.settle(c, h, key)
	}
	delete(c.doubts, h)
}

// settle takes h from the binding of a lane, if that is c's.
func (p *pool) settle(c *client, h home, key string) {
	of := lane{h.topic, key}
	b := p.bound[of]
	if b == nil || b.holder != c {
		return
	}
	if delete(b.homes, h); len(b.homes) == 0 {
		delete(p.bound, of)
	}
}

// abandon unbinds all keys of a producer that cannot be used any more.
func (p *pool) abandon(c *client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unbind(c)
}

func (p *pool) unbind(c *client) {
	for h, keys := range c.doubts {
		for key := range keys {
			p.settle(c, h, key)
		}
	}
	c.doubts = nil
}
