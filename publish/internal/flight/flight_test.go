package flight_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/internal/flight"
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

// client is a Sender. Before the call waits, answer gets the events that were begun and have no result.
type client struct {
	begun   []int // all, in order
	pending []int
	answer  func(c *flight.Call, pending []int) (left []int)
	most    int // that were pending
	before  func(i int)
}

func (s *client) Begin(_ *flight.Call, i int) {
	if s.before != nil {
		s.before(i)
	}
	s.begun, s.pending = append(s.begun, i), append(s.pending, i)
}

func (s *client) Flush(c *flight.Call) {
	if s.most = max(s.most, len(s.pending)); len(s.pending) > 0 {
		s.pending = s.answer(c, s.pending)
	}
}

func (s *client) Lost(i int, cause error) error { return fmt.Errorf("event %d: %w", i, cause) }

// each returns an answer that gives each event the result of.
func each(of func(i int) error) func(*flight.Call, []int) []int {
	return func(c *flight.Call, pending []int) []int {
		for _, i := range pending {
			c.Finish(i, of(i))
		}
		return nil
	}
}

func send(ctx context.Context, events []publish.Outgoing, concurrency int, s *client) []error {
	return flight.Send(ctx, context.Background(), events, concurrency, s)
}

func TestOrderOfAKey(t *testing.T) {
	t.Parallel()
	var keys []string
	for i := range 300 {
		keys = append(keys, fmt.Sprint(i%7))
	}
	var flying map[string]bool
	s := &client{answer: func(c *flight.Call, pending []int) []int {
		flying = make(map[string]bool)
		for _, i := range pending {
			require.False(t, flying[keys[i]], "two events of a key are on their way")
			flying[keys[i]] = true
		}
		c.Finish(pending[len(pending)-1], nil) // the last one first
		return pending[:len(pending)-1]
	}}
	require.Equal(t, make([]error, 300), send(t.Context(), batch("d", keys...), 5, s))
	require.Equal(t, 5, s.most)
	last := make(map[string]int)
	for _, i := range s.begun {
		require.GreaterOrEqual(t, i, last[keys[i]])
		last[keys[i]] = i
	}
}

// TestAKeyGoesOn: the next event of a key does not wait until other keys had their turn.
func TestAKeyGoesOn(t *testing.T) {
	t.Parallel()
	s := &client{answer: each(func(int) error { return nil })}
	require.Equal(t, make([]error, 5), send(t.Context(), batch("d", "a", "b", "", "a", "a"), 1, s))
	require.Equal(t, []int{0, 3, 4, 1, 2}, s.begun)
}

func TestNothingBehindAFailure(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for _, concurrency := range []int{-1, 1, 3, 100} {
		s := &client{answer: each(func(i int) error {
			if i == 2 || i == 3 {
				return broken
			}
			return nil
		})}
		errs := send(t.Context(), batch("d", "a", "b", "a", "", "a", "", "b", "a"), concurrency, s)
		require.Equal(t, []error{nil, nil, broken, broken, outbox.ErrBehind, nil, nil, outbox.ErrBehind}, errs)
		require.NotContains(t, s.begun, 4)
		require.NotContains(t, s.begun, 7)
	}
}

func TestUnavailable(t *testing.T) {
	t.Parallel()
	events := append(batch("gone", "a", "a", "", "b"), batch("there", "a", "", "c")...)
	s := &client{answer: each(func(i int) error {
		if events[i].Destination == "gone" {
			return outbox.Unavailable(errors.New("no route"))
		}
		return nil
	})}
	errs := send(t.Context(), events, 1, s)
	for _, i := range []int{0, 2, 3} {
		require.True(t, outbox.IsUnavailable(errs[i]), i)
	}
	require.Equal(t, []error{outbox.ErrBehind, outbox.ErrBehind, nil, nil}, []error{errs[1], errs[4], errs[5], errs[6]})
	require.Equal(t, []int{0, 5, 6}, s.begun, "one attempt is enough to know")

	s = &client{answer: each(func(int) error { return outbox.BrokerUnavailable(errors.New("no route")) })}
	for i, err := range send(t.Context(), append(batch("one", "a", ""), batch("two", "b")...), 1, s) {
		require.True(t, outbox.IsBrokerUnavailable(err), i)
	}
	require.Len(t, s.begun, 1)
}

// TestContextEnds: what was begun is lost, and what was not is not sent. A result that has come counts.
func TestContextEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	var call *flight.Call
	s := &client{answer: func(c *flight.Call, pending []int) []int {
		if call = c; len(pending) == 2 {
			c.Add(0, nil)
			cancel(stop)
		}
		return nil
	}}
	errs := send(ctx, batch("d", "a", "b", "c", "b", "a"), 2, s)
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], stop)
	require.NotErrorIs(t, errs[1], outbox.ErrNotSent)
	require.ErrorIs(t, errs[2], outbox.ErrNotSent)
	require.Equal(t, outbox.ErrBehind, errs[3])
	require.ErrorIs(t, errs[4], outbox.ErrNotSent)
	require.ErrorIs(t, errs[4], stop)
	call.Finish(1, nil) // too late
	call.Later(1, func() error { panic("it is over") })
	require.ErrorIs(t, errs[1], stop)
}

func TestClosing(t *testing.T) {
	t.Parallel()
	closing, closes := context.WithCancelCause(context.Background())
	closed := outbox.BrokerUnavailable(errors.New("closed"))
	s := &client{answer: func(_ *flight.Call, pending []int) []int {
		closes(closed)
		return pending
	}}
	errs := flight.Send(t.Context(), closing, batch("d", "a", "b", "a"), 1, s)
	require.ErrorIs(t, errs[0], closed)
	require.ErrorIs(t, errs[1], closed)
	require.Equal(t, outbox.ErrBehind, errs[2])
	require.Equal(t, []int{0}, s.begun)
}

// TestLater: a result that takes long is found while others come, and the call waits for it.
func TestLater(t *testing.T) {
	t.Parallel()
	found, other := errors.New("found"), make(chan struct{})
	s := &client{answer: func(c *flight.Call, pending []int) []int {
		for _, i := range pending {
			switch i {
			case 0:
				c.Later(0, func() error {
					<-other
					return found
				})
			case 3:
				close(other)
				c.Finish(3, nil)
			default:
				c.Finish(i, nil)
			}
		}
		return nil
	}}
	require.Equal(t, []error{found, nil, outbox.ErrBehind, nil}, send(t.Context(), batch("d", "a", "b", "a", "b"), 2, s))
}

// TestASecondResult: it is ignored.
func TestASecondResult(t *testing.T) {
	t.Parallel()
	s := &client{answer: func(c *flight.Call, pending []int) []int {
		for _, i := range pending {
			c.Add(i, nil)
			c.Add(i, errors.New("again"))
			c.Wake()
		}
		return nil
	}}
	require.Equal(t, make([]error, 3), send(t.Context(), batch("d", "a", "", "a"), 2, s))
}

// TestBeginCrashes: an event whose Begin did not return never counts as sent, and the others are sent.
func TestBeginCrashes(t *testing.T) {
	t.Parallel()
	for how, crash := range map[string]func(){"panicked (string)": func() { panic("secret") }, "called runtime.Goexit": runtime.Goexit} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := &client{answer: each(func(int) error { return nil })}
			s.before = func(i int) {
				if i == 0 || i == 3 {
					crash()
				}
			}
			errs := send(t.Context(), batch("d", "a", "a", "b", "", "c", "c"), 1, s)
			for _, i := range []int{0, 3} {
				require.ErrorContains(t, errs[i], "send event: the publisher "+how)
				require.NotContains(t, errs[i].Error(), "secret")
			}
			require.Equal(t, []error{outbox.ErrBehind, nil, nil, nil}, []error{errs[1], errs[2], errs[4], errs[5]}, "others are sent")
		})
	}
}

func TestNothing(t *testing.T) {
	t.Parallel()
	require.Empty(t, send(t.Context(), nil, 4, &client{answer: each(nil)}))
}
