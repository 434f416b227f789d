package kafka

// Bound returns how many keys are bound to a producer.
func (p *Publisher) Bound() int {
	p.pool.mu.Lock()
	defer p.pool.mu.Unlock()
	n := len(p.pool.bound)
	for _, c := range p.pool.clients {
		n += len(c.doubts)
	}
	return n
}
