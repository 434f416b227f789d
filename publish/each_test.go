package publish_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// batch makes an event per key, for one destination.
func batch(destination string, keys ...string) []publish.Outgoing {
	events := make([]publish.Outgoing, len(keys))
	for i, key := range keys {
		events[i] = publish.Outgoing{Event: outbox.Event{ID: uuid.New()}, Destination: destination, Key: key}
	}
	return events
}

func TestEachKeepsTheOrderOfAKey(t *testing.T) {
	t.Parallel()
	var keys []string
	for i := range 300 {
		keys = append(keys, fmt.Sprint(i%7))
	}
	events := batch("d", keys...)
	var mu sync.Mutex
	got := make(map[string][]uuid.UUID)
	errs := publish.Each(t.Context(), events, 5, func(_ context.Context, o publish.Outgoing) error {
		mu.Lock()
		defer mu.Unlock()
		got[o.Key] = append(got[o.Key], o.ID)
		return nil
	})
	want := make(map[string][]uuid.UUID)
	for i, o := range events {
		require.NoError(t, errs[i])
		want[o.Key] = append(want[o.Key], o.ID)
	}
	require.Len(t, errs, len(events))
	require.Equal(t, want, got)
}

func TestEachSendsNothingBehindAFailure(t *testing.T) {
	t.Parallel()
	events := batch("d", "a", "b", "a", "", "a", "", "b")
	broken := errors.New("broken")
	var sent sync.Map
	errs := publish.Each(t.Context(), events, 3, func(_ context.Context, o publish.Outgoing) error {
		sent.Store(o.ID, true)
		if o.ID == events[2].ID || o.ID == events[3].ID {
			return broken
		}
		return nil
	})
	require.Equal(t, []error{nil, nil, broken, broken, outbox.ErrBehind, nil, nil}, errs)
	_, found := sent.Load(events[4].ID)
	require.False(t, found)
}

func TestEachUsesItsConcurrency(t *testing.T) {
	t.Parallel()
	for _, concurrency := range []int{-1, 1, 4} {
		want := max(concurrency, 1)
		var running atomic.Int64
		var together sync.WaitGroup // passes when all of them run concurrently
		together.Add(want)
		var first atomic.Int64
		errs := publish.Each(t.Context(), batch("d", make([]string, 20)...), concurrency, func(context.Context, publish.Outgoing) error {
			if n := running.Add(1); n > int64(want) {
				return fmt.Errorf("%d concurrently", n)
			}
			defer running.Add(-1)
			if first.Add(1) <= int64(want) {
				together.Done()
				together.Wait()
				for range 1000 { // if there were more of them, they would run now
					runtime.Gosched()
				}
			}
			return nil
		})
		for _, err := range errs {
			require.NoError(t, err)
		}
	}
}

func TestEachGivesUpOnAnUnavailableDestination(t *testing.T) {
	t.Parallel()
	events := append(batch("gone", "a", "a", "", "b"), batch("there", "a", "", "c")...)
	var sent atomic.Int64
	errs := publish.Each(t.Context(), events, 1, func(_ context.Context, o publish.Outgoing) error {
		if o.Destination == "gone" {
			sent.Add(1)
			return outbox.Unavailable(errors.New("no route"))
		}
		return nil
	})
	for _, i := range []int{0, 2, 3} {
		require.True(t, outbox.IsUnavailable(errs[i]), i)
	}
	require.Equal(t, []error{outbox.ErrBehind, outbox.ErrBehind, nil, nil}, []error{errs[1], errs[4], errs[5], errs[6]})
	require.EqualValues(t, 1, sent.Load(), "one attempt is enough to know")
}

func TestEachStopsWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	errs := publish.Each(ctx, batch("d", "c", "a", "", "b"), 1, func(context.Context, publish.Outgoing) error {
		cancel(stop)
		return nil
	})
	require.NoError(t, errs[0], "it was sent")
	for _, err := range errs[1:] {
		require.ErrorIs(t, err, outbox.ErrNotSent)
		require.ErrorIs(t, err, stop)
		require.False(t, outbox.IsPermanent(err))
	}
}

func TestEachGivesUpOnAnUnavailableBroker(t *testing.T) {
	t.Parallel()
	events := append(batch("one", "a", "a", ""), batch("two", "b", "")...)
	var sent atomic.Int64
	errs := publish.Each(t.Context(), events, 1, func(context.Context, publish.Outgoing) error {
		sent.Add(1)
		return outbox.BrokerUnavailable(errors.New("no route"))
	})
	for _, i := range []int{0, 2, 3, 4} {
		require.True(t, outbox.IsBrokerUnavailable(errs[i]), i)
	}
	require.Equal(t, outbox.ErrBehind, errs[1])
	require.EqualValues(t, 1, sent.Load(), "one attempt is enough to know")
}

// TestEachSurvivesTheSender: an event whose send did not return never counts as sent.
func TestEachSurvivesTheSender(t *testing.T) {
	t.Parallel()
	errs := publish.Each(t.Context(), batch("d", "a", "a", "b", ""), 2, func(_ context.Context, o publish.Outgoing) error {
		if o.Key == "a" {
			panic("secret")
		}
		return nil
	})
	require.ErrorContains(t, errs[0], "panicked (string)")
	require.NotContains(t, errs[0].Error(), "secret")
	require.Equal(t, []error{outbox.ErrBehind, nil, nil}, errs[1:])

	errs = publish.Each(t.Context(), batch("d", "a", "a", "b", "", "c", "c"), 1, func(_ context.Context, o publish.Outgoing) error {
		if o.Key == "a" || o.Key == "" {
			runtime.Goexit()
		}
		return nil
	})
	require.ErrorContains(t, errs[0], "send event: the publisher called runtime.Goexit")
	require.ErrorContains(t, errs[3], "send event: the publisher called runtime.Goexit")
	require.Equal(t, []error{outbox.ErrBehind, nil, nil, nil}, []error{errs[1], errs[2], errs[4], errs[5]}, "others are sent")
}

func TestEachOfNothing(t *testing.T) {
	t.Parallel()
	require.Empty(t, publish.Each(t.Context(), nil, 4, nil))
}
