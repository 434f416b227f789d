// Package missing decides what becomes of events whose destination the broker does not know: they wait for a while, in
// which it may be created or a broker may come to its senses, and are then refused permanently.
package missing

import (
	"sync"
	"time"

	"github.com/outboxgen/outboxgen/outbox"
)

// forgotten is how long a missing destination is remembered when nobody asks for it any more.
const forgotten = time.Hour

// Destinations remembers since when a broker has not known which destination. It is safe for concurrent use.
type Destinations struct {
	// Timeout is how long events wait; not above zero means that they do not.
	Timeout time.Duration
	// Now is the clock; nil means time.Now.
	Now func() time.Time

	mu    sync.Mutex
	spans map[string]span
}

// span is when a destination was first and last missing.
type span struct{ first, last time.Time }

// Forget ends the time for which a destination was missing. It is for every other outcome: the broker knew the
// destination, or was away and said nothing about it.
func (d *Destinations) Forget(destination string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.spans, destination)
}

// Missing marks err, by which the broker does not know a destination: as unavailable at first, and as permanent once it
// has been missing for Timeout, from the first call to this one, without a call of Forget between them.
func (d *Destinations) Missing(destination string, err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now
	if d.Now != nil {
		now = d.Now
	}
	at := now()
	s, seen := d.spans[destination]
	if !seen || at.Sub(s.last) > max(forgotten, d.Timeout) {
		s.first = at
	}
	s.last = at
	if d.spans == nil {
		d.spans = make(map[string]span)
	}
	d.spans[destination] = s
	if at.Sub(s.first) >= d.Timeout {
		return outbox.Permanent(err)
	}
	return outbox.Unavailable(err)
}
