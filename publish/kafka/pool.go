package kafka

import (
	"context"
	"slices"
	"sync"

	"github.com/outboxgen/outboxgen/publish"
)

// target is the topic and partition of a record.
type target struct {
	topic     string
	partition int32
}

// topicKey is a key in a topic.
type topicKey struct{ topic, key string }

// pool has the producers, each used by one call at a time, and knows which producer a topic key is bound to. A record
// that was given up may still be in flight. The cluster refuses it after its own producer, by then with a higher epoch,
// has written to the same partition. A write of another producer does not have this effect. So the topic key stays with
// its producer until then. create must be set.
type pool struct {
	create func() (*client, error)

	mu      sync.Mutex
	clients []*client
	bound   map[topicKey]*binding
}

// binding binds a topic key to the producer that has records in doubt at some targets.
type binding struct {
	holder  *client
	targets map[target]bool
}

// share is the part of a call's events that goes through one producer. A nil holder means any producer.
type share struct {
	holder *client
	events []int
}

// shares splits events by the producers that their topic keys are bound to. The events with one key stay together and
// in order, even if they go to several topics.
func (p *pool) shares(events []publish.Outgoing) []share {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.bound) == 0 {
		return []share{{}}
	}
	holders := make(map[string]*client) // by key
	for i := range events {
		o := &events[i]
		if b := p.bound[topicKey{o.Destination, o.Key}]; b != nil && holders[o.Key] == nil {
			holders[o.Key] = b.holder
		}
	}
	var shares []share
	at := make(map[*client]int)
	for i := range events {
		holder := holders[events[i].Key]
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

// take waits until holder is free. If holder is nil or was closed meanwhile, it returns any free producer, or a new
// one. No other call uses the producer until release.
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
		<-holder.turn // it was closed meanwhile, and no topic key is bound to it any more
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

// release gives a producer back. A broken producer is kept while keys are bound to it, and used only for them.
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

// close disconnects all producers. None may be in use.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.clients {
		c.close()
	}
	p.clients, p.bound = nil, nil
}

// doubt binds a topic key to c, because a record of it may be in flight to t.
func (p *pool) doubt(c *client, key string, t target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := topicKey{t.topic, key}
	b := p.bound[of]
	if b == nil || b.holder != c {
		b = &binding{holder: c, targets: make(map[target]bool)}
		if p.bound == nil {
			p.bound = make(map[topicKey]*binding)
		}
		p.bound[of] = b
	}
	b.targets[t] = true
	if c.doubts == nil {
		c.doubts = make(map[target]map[string]bool)
	}
	if c.doubts[t] == nil {
		c.doubts[t] = make(map[string]bool)
	}
	c.doubts[t][key] = true
}

// doubts reports whether a record of c may be in flight.
func (p *pool) doubts(c *client) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(c.doubts) > 0
}

// wrote notes that c has written to t. From now on the cluster refuses late records of c there.
func (p *pool) wrote(c *client, t target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key := range c.doubts[t] {
		p.settle(c, t, key)
	}
	delete(c.doubts, t)
}

// settle removes t from the binding of a topic key if the topic key is bound to c.
func (p *pool) settle(c *client, t target, key string) {
	of := topicKey{t.topic, key}
	b := p.bound[of]
	if b == nil || b.holder != c {
		return
	}
	if delete(b.targets, t); len(b.targets) == 0 {
		delete(p.bound, of)
	}
}

// abandon unbinds all keys of a producer that cannot be used again.
func (p *pool) abandon(c *client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unbind(c)
}

func (p *pool) unbind(c *client) {
	for t, keys := range c.doubts {
		for key := range keys {
			p.settle(c, t, key)
		}
	}
	c.doubts = nil
}
