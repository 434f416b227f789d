package webhook

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/outboxgen/outboxgen/outbox"
)

// Lookup returns the endpoint of a destination, which is the value of the field that the YAML names with to_field. It
// must be safe for concurrent use. It must return soon after ctx has ended, which is after Config.Timeout at the
// latest. The result is used for all events of the destination until Config.LookupTTL has passed.
//
// The error says what happens to the events of this destination, and of no other:
//   - ErrNoEndpoint, also wrapped: they are dead letters.
//   - An error marked by outbox.Permanent or outbox.BrokerUnavailable keeps its meaning. BrokerUnavailable makes all
//     destinations rest: return it if the store of the endpoints is unavailable.
//   - Any other error, a panic, and an Endpoint that is not valid: the destination is unavailable. Its events wait, and
//     no attempt is charged.
//
// The text of the error is logged and stored, so it must not contain secrets.
type Lookup func(ctx context.Context, destination string) (Endpoint, error)

// ErrNoEndpoint is the error of a Lookup for a destination that does not exist.
var ErrNoEndpoint = errors.New("it has no endpoint")

// maxLookups limits how many looked-up endpoints are kept.
const maxLookups = 10_000

// directory keeps what a Lookup has returned.
type directory struct {
	lookup  Lookup
	config  *Config
	ctx     context.Context // ends when the publisher is closed
	mu      sync.Mutex
	entries map[string]*entry
}

// entry is the result of a lookup, or one under way. Its other fields may be read when done is closed.
type entry struct {
	done    chan struct{}
	found   *endpoint
	err     error
	expires time.Time
}

// over reports whether e cannot be used any more.
func (e *entry) over(now time.Time) bool {
	select {
	case <-e.done:
		return !now.Before(e.expires)
	default:
		return false
	}
}

// find returns the endpoint of a destination. Events of one destination share a lookup.
func (d *directory) find(ctx context.Context, destination string) (*endpoint, error) {
	d.mu.Lock()
	e := d.entries[destination]
	if now := time.Now(); e == nil || e.over(now) {
		var before *endpoint
		if e != nil {
			before = e.found
		} else if len(d.entries) >= maxLookups {
			d.makeRoom(now)
		}
		e = &entry{done: make(chan struct{})}
		d.entries[destination] = e
		lookupCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.config.Timeout) // others wait for it too
		stop := context.AfterFunc(d.ctx, cancel)
		go func() {
			defer stop()
			defer cancel()
			d.fill(lookupCtx, destination, e, before)
		}()
	}
	d.mu.Unlock()
	timeout := time.NewTimer(d.config.Timeout + lookupGrace) // for a Lookup that ignores its context
	defer timeout.Stop()
	select {
	case <-e.done:
		return e.found, e.err
	case <-ctx.Done():
		return nil, notSent(ctx)
	case <-timeout.C:
		return nil, outbox.Unavailable(fmt.Errorf("look up endpoint of %q: Lookup has not returned within %s", destination,
			d.config.Timeout))
	}
}

// lookupGrace is how long a Lookup may take after the end of its context.
const lookupGrace = 100 * time.Millisecond

// fill makes the lookup of e. before is the endpoint of an earlier one, or nil.
func (d *directory) fill(ctx context.Context, destination string, e *entry, before *endpoint) {
	var found Endpoint
	err := errors.New("Lookup called runtime.Goexit")
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("Lookup panicked (%T)", p) // without the value, which may hold a secret
		}
		if err == nil {
			if e.found, err = newEndpoint(destination, found); err != nil {
				err = &configError{err.Error()}
			}
		}
		if err == nil {
			e.found.inherit(before, d.config)
		}
		keep := d.config.LookupTTL
		if err != nil {
			e.err, keep = lookupError(destination, err), min(d.config.FailedLookupTTL, keep)
		}
		e.expires = time.Now().Add(keep)
		close(e.done)
	}()
	found, err = d.lookup(ctx, destination)
}

// lookupError returns what the error of a lookup means for the events of the destination.
func lookupError(destination string, err error) error {
	text := fmt.Errorf("look up endpoint of %q: %w", destination, err)
	switch {
	case errors.Is(err, ErrNoEndpoint):
		return outbox.Permanent(&configError{text.Error()}) // logged at Warn
	case outbox.IsPermanent(err), outbox.IsBrokerUnavailable(err):
		return text
	default:
		return outbox.Unavailable(text)
	}
}

// makeRoom removes the results that have expired, and others until a tenth of the room is free. The caller holds d.mu.
func (d *directory) makeRoom(now time.Time) {
	for name, e := range d.entries {
		if e.over(now) {
			delete(d.entries, name)
		}
	}
	for name := range d.entries {
		if len(d.entries) <= maxLookups-maxLookups/10 {
			return
		}
		delete(d.entries, name)
	}
}
