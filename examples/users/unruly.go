package main

import (
	"context"
	"math/rand/v2"
	"sync"

	"github.com/outboxgen/outboxgen/publish"
)

// unruly wraps a publisher and does what brokers, mirrors and restored backups sometimes do: it shuffles each batch, and
// sends about every second event again later. The wrapped publisher keeps the order, and repeats an event only if it does
// not know whether the event has arrived.
type unruly struct {
	publisher publish.Publisher

	mu    sync.Mutex
	later []publish.Outgoing // events to send again
	sent  int                // messages that Kafka has, including repeats
	again int                // repeats among them
}

// Publish implements publish.Publisher.
func (u *unruly) Publish(ctx context.Context, events []publish.Outgoing) []error {
	u.mu.Lock()
	defer u.mu.Unlock()
	repeats := u.later
	u.later = nil
	all := append(append([]publish.Outgoing(nil), events...), repeats...)
	places := rand.Perm(len(all))
	mixed := make([]publish.Outgoing, len(all))
	for i, place := range places {
		mixed[place] = all[i]
	}
	results := u.publisher.Publish(ctx, mixed)
	errs := make([]error, len(events))
	for i, o := range all {
		err := results[places[i]]
		if err == nil {
			u.sent++
		}
		switch {
		case i < len(events):
			errs[i] = err
			if err == nil && rand.IntN(2) == 0 {
				u.later = append(u.later, o)
			}
		case err == nil:
			u.again++
		}
	}
	return errs
}

// flush sends the events of later. It ignores errors: Kafka already has these events.
func (u *unruly) flush(ctx context.Context) {
	u.Publish(ctx, nil)
}
