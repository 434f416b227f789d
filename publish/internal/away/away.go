// Package away remembers what a call of Publish has learnt about destinations, so that it does not try each event of one
// that does not answer.
package away

import "github.com/outboxgen/outboxgen/outbox"

// Destinations are those of one call. The zero value knows nothing. It must not be used concurrently.
type Destinations struct {
	broker error            // why nothing more is sent
	down   map[string]error // by destination: why nothing more is sent there
}

// Err returns why nothing may be sent to a destination, or nil.
func (d *Destinations) Err(destination string) error {
	if d.broker != nil {
		return d.broker
	}
	return d.down[destination]
}

// Note remembers what the result of an event means for others: after outbox.Unavailable nothing more is sent to its
// destination, and after outbox.BrokerUnavailable to none.
func (d *Destinations) Note(destination string, err error) {
	switch {
	case outbox.IsBrokerUnavailable(err):
		d.broker = err
	case outbox.IsUnavailable(err):
		if d.down == nil {
			d.down = make(map[string]error)
		}
		d.down[destination] = err
	}
}
