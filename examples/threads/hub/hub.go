// Package hub passes messages to the clients of this process that watch their threads.
package hub

import (
	"context"
	"sync"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/examples/threads/events"
)

// Hub knows who watches which thread. Any number of goroutines may use it concurrently.
type Hub struct {
	buffer int

	mu      sync.Mutex
	threads map[uuid.UUID]map[*Subscription]struct{}
	closed  bool
}

var _ events.Clients = (*Hub)(nil)

// New returns a hub whose subscriptions buffer up to buffer messages for their clients.
func New(buffer int) *Hub {
	return &Hub{buffer: buffer, threads: make(map[uuid.UUID]map[*Subscription]struct{})}
}

// Subscription is one client that watches one thread.
type Subscription struct {
	hub      *Hub
	thread   uuid.UUID
	messages chan events.MessageCreated
}

// Subscribe returns a subscription that gets the messages of a thread that are pushed from now on, until Close. On a closed
// hub the subscription has ended already.
func (h *Hub) Subscribe(thread uuid.UUID) *Subscription {
	s := &Subscription{hub: h, thread: thread, messages: make(chan events.MessageCreated, h.buffer)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		close(s.messages)
		return s
	}
	if h.threads[thread] == nil {
		h.threads[thread] = make(map[*Subscription]struct{})
	}
	h.threads[thread][s] = struct{}{}
	return s
}

// Messages is closed when the subscription ends: by Close, by the hub's Close, or because the client was too slow.
func (s *Subscription) Messages() <-chan events.MessageCreated { return s.messages }

// Close ends the subscription. It may be called more than once.
func (s *Subscription) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.hub.drop(s)
}

// Push gives m to all subscriptions of its thread and waits for none of them. It drops a subscription whose buffer is full;
// the client reads what it has missed from the table of messages when it comes back. Push never fails.
func (h *Hub) Push(_ context.Context, m events.MessageCreated) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.threads[m.ThreadID] {
		select {
		case s.messages <- m:
		default:
			h.drop(s)
		}
	}
	return nil
}

// Watchers returns how many subscriptions a thread has.
func (h *Hub) Watchers(thread uuid.UUID) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.threads[thread])
}

// Close ends all subscriptions, and future ones immediately.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, watchers := range h.threads {
		for s := range watchers {
			h.drop(s)
		}
	}
}

// drop ends s unless it has ended. The caller holds mu.
func (h *Hub) drop(s *Subscription) {
	watchers := h.threads[s.thread]
	if _, open := watchers[s]; !open {
		return
	}
	delete(watchers, s)
	if len(watchers) == 0 {
		delete(h.threads, s.thread)
	}
	close(s.messages)
}
