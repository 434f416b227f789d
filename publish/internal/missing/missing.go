// Package missing decides what happens to events whose destination the broker does not know. They wait until the
// destination is created or the broker finds it again, however long that takes, because an outage must not make dead
// letters of a backlog. Who would rather give up sets a limit.
package missing

import (
	"fmt"
	"sync"
	"time"

	"github.com/outboxgen/outboxgen/outbox"
)

// forgotten is how long a missing destination is remembered after the last event for it.
const forgotten = time.Hour

// Destinations remembers which destinations a broker does not know, and since when. It is safe for concurrent use.
type Destinations struct {
	// Timeout is how long events wait. Zero means that they wait however long; a negative value means that they do not
	// wait.
	Timeout time.Duration
	// Now is the clock; nil means time.Now.
	Now func() time.Time

	mu    sync.Mutex
	spans map[string]span
}

// span has the times at which a destination was first and last missing.
type span struct{ first, last time.Time }

// Forget ends the time for which a destination was missing. Call it for every other outcome: the broker knew the
// destination, or was unavailable and said nothing about it.
func (d *Destinations) Forget(destination string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.spans, destination)
}

// Missing marks err, which says that the broker does not know a destination and what to do. It marks err as
// unavailable, and with a Timeout as permanent when that has passed since the first call for the destination without a
// call of Forget. The text says since when, or from when on events are refused.
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
	switch {
	case d.Timeout < 0:
		return outbox.Permanent(err)
	case d.Timeout == 0:
		return outbox.Unavailable(fmt.Errorf("%w (since %s; its events wait)", err, s.first.UTC().Format(time.RFC3339)))
	case at.Sub(s.first) >= d.Timeout:
		return outbox.Permanent(fmt.Errorf("%w (for longer than %s)", err, d.Timeout))
	}
	dead := s.first.Add(d.Timeout + time.Second - 1).UTC().Format(time.RFC3339) // rounded up
	return outbox.Unavailable(fmt.Errorf("%w (otherwise its events become dead letters from %s on)", err, dead))
}
