package nats

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// held is a message that was delivered and is not known to be acknowledged.
type held struct {
	jetstream.Msg
	stream uint64 // its place in the stream
	done   bool   // it is settled, and its acknowledgement may be on its way
}

// window has the messages that this process holds, and knows whether it may apply them.
type window struct {
	changed chan struct{} // has an element after a message was added

	mu      sync.Mutex
	all     map[uint64]*held // by place
	ready   []*held          // not yet handed out
	last    uint64           // the number of the last delivery, 0 if none has been seen
	ordered bool
	// unsure: there may be a message that was delivered and has not arrived.
	unsure bool
	since  time.Time // when it became unsure
	// how many deliveries have not arrived, less the messages that came only when they were delivered again
	lost uint64
}

func newWindow(ordered bool) *window {
	return &window{
		changed: make(chan struct{}, 1), all: make(map[uint64]*held), ordered: ordered, unsure: ordered, since: time.Now(),
	}
}

// add takes a delivered message. The server numbers deliveries, so that a missing one is noticed, also before the first
// that a process sees.
func (w *window) add(m jetstream.Msg, place *jetstream.MsgMetadata) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := place.Sequence.Consumer
	if w.ordered && n != w.last+1 {
		if !w.unsure {
			w.unsure, w.since = true, time.Now()
		}
		if w.last != 0 && n > w.last {
			w.lost += n - w.last - 1
		}
	}
	w.last = n
	stream := place.Sequence.Stream
	if h := w.all[stream]; h != nil {
		h.Msg = m // delivered again: the last delivery is the one to answer
		return
	}
	if place.NumDelivered > 1 && w.lost > 0 {
		w.lost--
	}
	h := &held{Msg: m, stream: stream}
	w.all[stream] = h
	w.ready = append(w.ready, h)
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// take returns up to n messages in the order of the stream, none while a delivered message is missing.
func (w *window) take(n int) []*held {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unsure || len(w.ready) == 0 {
		return nil
	}
	slices.SortFunc(w.ready, func(a, b *held) int { return cmp.Compare(a.stream, b.stream) })
	n = min(n, len(w.ready))
	taken := slices.Clone(w.ready[:n])
	w.ready = slices.Delete(w.ready, 0, n)
	return taken
}

// doubts reports whether the window is unsure, since when, whether it waits for lost deliveries, and how many messages
// it holds.
func (w *window) doubts() (unsure bool, since time.Duration, lost bool, holds int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unsure, time.Since(w.since), w.lost > 0, len(w.all)
}

// sure notes that every message which was delivered when the window held so many has arrived. It does nothing if the
// window has changed meanwhile.
func (w *window) sure(holds int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.all) != holds {
		return false
	}
	w.unsure, w.lost = false, 0
	return true
}

// settled marks messages as done and returns them with the earlier ones whose acknowledgement may have got lost.
func (w *window) settled(ms []*held) []jetstream.Msg {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range ms {
		h.done = true
	}
	return w.messages(true)
}

// pick returns the messages that are done, or those that are not.
func (w *window) pick(done bool) []jetstream.Msg {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.messages(done)
}

func (w *window) messages(done bool) []jetstream.Msg {
	var ms []*held
	for _, h := range w.all {
		if h.done == done {
			ms = append(ms, h)
		}
	}
	slices.SortFunc(ms, func(a, b *held) int { return cmp.Compare(a.stream, b.stream) })
	picked := make([]jetstream.Msg, len(ms))
	for i, h := range ms {
		picked[i] = h.Msg
	}
	return picked
}

// forget removes the done messages whose acknowledgement the server has got.
func (w *window) forget(acked []jetstream.Msg) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := make(map[jetstream.Msg]bool, len(acked))
	for _, m := range acked {
		known[m] = true
	}
	for place, h := range w.all {
		if h.done && known[h.Msg] {
			delete(w.all, place)
		}
	}
}

// wait waits until a message was added, ctx ends, or d is over.
func (w *window) wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-w.changed:
	case <-ctx.Done():
	case <-timer.C:
	}
}
