package publishtest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/publishtest"
)

// publisherFunc is a function as a Publisher.
type publisherFunc func(ctx context.Context, events []publish.Outgoing) []error

func (f publisherFunc) Publish(ctx context.Context, events []publish.Outgoing) []error {
	return f(ctx, events)
}

// mapped changes each error of good.
func mapped(good publish.Publisher, change func(error) error) publisherFunc {
	return func(ctx context.Context, events []publish.Outgoing) []error {
		errs := good.Publish(ctx, events)
		for i, err := range errs {
			if err != nil {
				errs[i] = change(err)
			}
		}
		return errs
	}
}

// mutants are publishers with one fault each, and the check that must notice the fault.
var mutants = map[string]struct {
	noticed string
	breaks  func(bus *memoryBus, good publish.Publisher) publisherFunc
}{
	"sends what is behind a failure": {"an event that the broker refuses", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		return func(ctx context.Context, events []publish.Outgoing) (errs []error) {
			for i := range events {
				errs = append(errs, good.Publish(ctx, events[i:i+1])...)
			}
			return errs
		}
	}},
	"reports every event as sent": {"nothing is lost under faults", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		return mapped(good, func(error) error { return nil })
	}},
	"reports what ctx has cut off as sent": {"a hanging broker", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		return mapped(good, func(err error) error {
			if errors.Is(err, context.DeadlineExceeded) {
				return nil
			}
			return err
		})
	}},
	"loses the end of a large batch": {"a large batch", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		return func(ctx context.Context, events []publish.Outgoing) []error {
			errs := make([]error, len(events))
			copy(errs, good.Publish(ctx, events[:min(len(events), 900)]))
			return errs
		}
	}},
	"reverses the order": {"order within a key", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		return func(ctx context.Context, events []publish.Outgoing) []error {
			events = slices.Clone(events)
			slices.Reverse(events)
			errs := good.Publish(ctx, events)
			slices.Reverse(errs)
			return errs
		}
	}},
	"sends twice": {"everything arrives once", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		return func(ctx context.Context, events []publish.Outgoing) []error {
			good.Publish(ctx, events)
			return good.Publish(ctx, events)
		}
	}},
	"drops headers": {"the envelope survives", func(bus *memoryBus, _ publish.Publisher) publisherFunc {
		encode := publish.CloudEvents("", publish.Binary)
		return newPublisher(bus, func(o publish.Outgoing) (publish.Message, error) {
			m, err := encode(o)
			delete(m.Headers, "x-empty")
			return m, err
		}).Publish
	}},
	"drops attributes": {"the envelope survives", func(bus *memoryBus, _ publish.Publisher) publisherFunc {
		encode := publish.CloudEvents("", publish.Binary)
		return newPublisher(bus, func(o publish.Outgoing) (publish.Message, error) {
			m, err := encode(o)
			delete(m.Attributes, "tracestate")
			return m, err
		}).Publish
	}},
	"has too few results": {"everything arrives once", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		return func(ctx context.Context, events []publish.Outgoing) []error {
			return good.Publish(ctx, events)[:len(events)/2]
		}
	}},
	"refuses events for errors that may pass": {"a failing broker", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		return mapped(good, func(err error) error {
			if errors.Is(err, outbox.ErrBehind) {
				return err
			}
			return outbox.Permanent(err)
		})
	}},
	"counts attempts for an outage": {"a broker that is down", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		return mapped(good, func(err error) error {
			if outbox.IsUnavailable(err) {
				return errNotConnected
			}
			return err
		})
	}},
	"never counts an attempt": {"a failing broker", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		return mapped(good, outbox.Unavailable)
	}},
	"counts attempts for events behind a failed one": {"a broker that is down", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		return mapped(good, func(err error) error {
			if errors.Is(err, outbox.ErrBehind) {
				return errors.New("failed")
			}
			return err
		})
	}},
	"sends what is behind a failure in another part of a batch": {"refused events in a large batch", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		return func(ctx context.Context, events []publish.Outgoing) (errs []error) {
			for part := range slices.Chunk(events, 50) {
				errs = append(errs, good.Publish(ctx, part)...)
			}
			return errs
		}
	}},
	"retries events that are refused": {"an event that cannot be encoded", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		return mapped(good, func(err error) error {
			if outbox.IsPermanent(err) {
				return errors.New(err.Error())
			}
			return err
		})
	}},
	"fails a batch as a whole": {"an event that the broker refuses", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		return func(ctx context.Context, events []publish.Outgoing) []error {
			errs := good.Publish(ctx, events)
			if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
				for j := range errs {
					errs[j] = errs[i]
				}
			}
			return errs
		}
	}},
	"continues after its context has ended": {"a context that has ended", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		return func(ctx context.Context, events []publish.Outgoing) []error {
			return good.Publish(context.WithoutCancel(ctx), events)
		}
	}},
	"counts attempts for events that were not sent": {"a context that has ended", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		return mapped(good, func(err error) error {
			if errors.Is(err, outbox.ErrNotSent) {
				return context.Canceled
			}
			return err
		})
	}},
	"reports sent events as not sent": {"a context that has ended", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		return func(ctx context.Context, events []publish.Outgoing) []error {
			errs := good.Publish(context.WithoutCancel(ctx), events)
			for i := range errs {
				if ctx.Err() != nil {
					errs[i] = outbox.ErrNotSent
				}
			}
			return errs
		}
	}},
	"does not return when its context ends": {"a hanging broker", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		return func(ctx context.Context, events []publish.Outgoing) []error {
			return good.Publish(context.WithoutCancel(ctx), events)
		}
	}},
	"keeps events": {"everything arrives once", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		var mu sync.Mutex
		var kept []publish.Outgoing
		return func(ctx context.Context, events []publish.Outgoing) []error {
			mu.Lock()
			defer mu.Unlock()
			if len(kept) > 0 {
				good.Publish(ctx, kept)
			}
			kept = events
			return make([]error, len(events))
		}
	}},
	"panics without events": {"an empty batch", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		return func(ctx context.Context, events []publish.Outgoing) []error {
			if len(events) == 0 {
				return []error{errors.New("nothing to send")}
			}
			return good.Publish(ctx, events)
		}
	}},
	"mixes up concurrent calls": {"concurrent calls", func(_ *memoryBus, good publish.Publisher) publisherFunc {
		var calls atomic.Int64
		return func(ctx context.Context, events []publish.Outgoing) []error {
			if calls.Add(1) == 40 {
				return make([]error, len(events))
			}
			return good.Publish(ctx, events)
		}
	}},
}

// recordingTB is a testing.TB that records a failure instead of reporting it.
type recordingTB struct {
	testing.TB
	failed atomic.Bool
	text   string // of the last failure
}

func (v *recordingTB) Helper() {}
func (v *recordingTB) Errorf(format string, args ...any) {
	v.failed.Store(true)
	v.text = fmt.Sprintf(format, args...)
}
func (v *recordingTB) Error(...any) { v.failed.Store(true) }
func (v *recordingTB) FailNow()     { v.failed.Store(true); runtime.Goexit() }

func passes(t *testing.T, check string, h publishtest.Harness) bool {
	return !run(t, check, h).failed.Load()
}

func run(t *testing.T, check string, h publishtest.Harness) *recordingTB {
	v := &recordingTB{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		publishtest.RunOne(v, check, h)
	}()
	<-done
	return v
}

// TestMistakesOfABrokerInMemory: what is usually wrong with the first broker of a test has a failure that says what to do.
func TestMistakesOfABrokerInMemory(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		breaks func(*naiveBus)
		checks []string
		says   string
	}{
		"keeps headers as they are": {func(b *naiveBus) { b.keepHeaders = true }, publishtest.Names(),
			"has no attribute id: does Received restore Attributes? It has the attributes [] and the headers [ce-"},
		"keeps the body": {func(b *naiveBus) { b.keepBody = true }, []string{"the envelope survives", "everything arrives once"},
			"message 0 has a payload that was changed after Publish returned: Publish, or the broker of the test, must copy it"},
		"has a prefix in attributes": {func(b *naiveBus) { b.upper = true }, []string{"the envelope survives"},
			"Received must restore Attributes: their plain names and decoded values"},
	} {
		for _, check := range c.checks {
			if check == "an empty batch" {
				continue // has no message
			}
			t.Run(name+"/"+check, func(t *testing.T) {
				t.Parallel()
				v := run(t, check, publishtest.Harness{Patience: 10 * time.Second, Start: func(t testing.TB) publishtest.Target {
					return target(t, func(bus *memoryBus) publish.Publisher {
						naive := &naiveBus{memoryBus: bus}
						c.breaks(naive)
						return newPublisher(naive, nil)
					})
				}})
				require.True(t, v.failed.Load())
				require.Contains(t, v.text, c.says)
			})
		}
	}
}

// naiveBus is a memoryBus with a mistake.
type naiveBus struct {
	*memoryBus
	keepHeaders, keepBody, upper bool
}

func (b *naiveBus) Send(ctx context.Context, subject string, headers map[string]string, body []byte) error {
	if err := b.memoryBus.Send(ctx, subject, headers, body); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.taken {
		m := &b.taken[i]
		switch {
		case b.keepHeaders && len(m.Attributes) > 0:
			m.Headers, m.Attributes = headers, nil
		case b.keepBody && bytes.Equal(m.Body, body):
			m.Body = body
		case b.upper:
			m.Attributes["SUBJECT"] = m.Attributes["subject"]
		}
	}
	return nil
}

// TestSuiteNoticesMutants: a publisher with one fault does not pass.
func TestSuiteNoticesMutants(t *testing.T) {
	t.Parallel()
	noticing := make(map[string]bool)
	for name, m := range mutants {
		noticing[m.noticed] = true
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Contains(t, publishtest.Names(), m.noticed)
			h := publishtest.Harness{Patience: 500 * time.Millisecond, Start: func(t testing.TB) publishtest.Target {
				return target(t, func(bus *memoryBus) publish.Publisher { return m.breaks(bus, newPublisher(bus, nil)) })
			}}
			require.False(t, passes(t, m.noticed, h), "the check %q does not notice the fault", m.noticed)
		})
	}
	for _, check := range publishtest.Names() {
		require.True(t, noticing[check], "no mutant for %q", check)
	}
}

func TestLackingFaultsAreLeftOut(t *testing.T) {
	t.Parallel()
	var set sync.Map
	publishtest.Run(t, publishtest.Harness{
		Lacks: []publishtest.Fault{publishtest.Failing, publishtest.Down, publishtest.Hanging},
		Start: func(t testing.TB) publishtest.Target {
			tg := target(t, func(bus *memoryBus) publish.Publisher { return newPublisher(bus, nil) })
			tg.Set = func(f publishtest.Fault) { set.Store(f, true) }
			return tg
		},
	})
	t.Cleanup(func() { // after the parallel subtests
		set.Range(func(f, _ any) bool {
			require.Equal(t, publishtest.Healthy, f)
			return true
		})
	})
}

func TestFaultsHaveNames(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"healthy", "down", "fault 9"}, []string{
		publishtest.Healthy.String(), publishtest.Down.String(), publishtest.Fault(9).String(),
	})
}
