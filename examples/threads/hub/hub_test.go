package hub_test

import (
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/threads/events"
	"github.com/outboxgen/outboxgen/examples/threads/hub"
)

func push(t *testing.T, h *hub.Hub, thread uuid.UUID, number int64) {
	t.Helper()
	require.NoError(t, h.Push(t.Context(), events.MessageCreated{ThreadID: thread, Number: number}))
}

// take returns the numbers of the buffered messages, and whether the subscription has ended.
func take(s *hub.Subscription) (numbers []int64, ended bool) {
	for {
		select {
		case m, open := <-s.Messages():
			if !open {
				return numbers, true
			}
			numbers = append(numbers, m.Number)
		default:
			return numbers, false
		}
	}
}

func requireTaken(t *testing.T, s *hub.Subscription, want ...int64) {
	t.Helper()
	numbers, ended := take(s)
	require.Equal(t, want, numbers)
	require.False(t, ended)
}

func TestPushReachesTheWatchersOfTheThread(t *testing.T) {
	t.Parallel()
	h := hub.New(4)
	one, two := uuid.New(), uuid.New()
	ada, bob, eve := h.Subscribe(one), h.Subscribe(one), h.Subscribe(two)
	push(t, h, one, 1)
	push(t, h, two, 7)
	push(t, h, uuid.New(), 9)
	requireTaken(t, ada, 1)
	requireTaken(t, bob, 1)
	requireTaken(t, eve, 7)

	bob.Close()
	bob.Close()
	push(t, h, one, 2)
	requireTaken(t, ada, 2)
	numbers, ended := take(bob)
	require.Empty(t, numbers)
	require.True(t, ended)
	require.Equal(t, 1, h.Watchers(one))
}

func TestSlowClientIsDropped(t *testing.T) {
	t.Parallel()
	h := hub.New(2)
	thread := uuid.New()
	slow, quick := h.Subscribe(thread), h.Subscribe(thread)
	for number := range int64(4) {
		push(t, h, thread, number+1)
		requireTaken(t, quick, number+1)
	}
	numbers, ended := take(slow)
	require.Equal(t, []int64{1, 2}, numbers, "the buffered messages are kept")
	require.True(t, ended)
	require.Equal(t, 1, h.Watchers(thread))
	slow.Close() // by its owner, who notices the drop now
}

func TestCloseEndsAll(t *testing.T) {
	t.Parallel()
	h := hub.New(2)
	early := h.Subscribe(uuid.New())
	h.Close()
	h.Close()
	late := h.Subscribe(uuid.New())
	for _, s := range []*hub.Subscription{early, late} {
		_, ended := take(s)
		require.True(t, ended)
		s.Close()
	}
	push(t, h, uuid.New(), 1)
}

func TestHubConcurrently(t *testing.T) {
	t.Parallel()
	h := hub.New(1)
	thread := uuid.New()
	var busy sync.WaitGroup
	for range 4 {
		busy.Go(func() {
			for range 200 {
				s := h.Subscribe(thread)
				take(s)
				s.Close()
			}
		})
		busy.Go(func() {
			for number := range int64(200) {
				_ = h.Push(t.Context(), events.MessageCreated{ThreadID: thread, Number: number})
			}
		})
	}
	busy.Wait()
	require.Zero(t, h.Watchers(thread))
}
