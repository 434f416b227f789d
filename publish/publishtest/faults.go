package publishtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// failingBroker: the first event of each key fails, those behind it are not sent, and all of them succeed later.
func failingBroker(b *bench) {
	before := b.events("a", "b")
	b.must(before)
	b.Set(Failing)
	events := b.events("a", "a", "b", "", "a", "b", "")
	errs := b.try(events)
	for _, i := range []int{0, 2, 3, 6} {
		b.requireAttempt(errs[i], fmt.Sprintf("event %d", i))
	}
	for _, i := range []int{1, 4, 5} {
		b.requireBehind(errs[i], fmt.Sprintf("event %d", i))
	}
	all := append(before, events...)
	b.requireAbsent(all, 3, 6, 7)

	b.Set(Healthy)
	b.must(events)
	b.requireInOrder(all)
}

// brokerDown: no attempt is counted, and all events succeed later.
func brokerDown(b *bench) {
	before := b.events("a", "b")
	b.must(before)
	b.Set(Down)
	events := b.events("a", "a", "b", "", "a", "")
	errs := b.try(events)
	for _, i := range []int{0, 2, 3, 5} {
		require.True(b, outbox.IsUnavailable(errs[i]), "event %d: %v", i, errs[i])
		require.False(b, outbox.IsPermanent(errs[i]), "event %d: %v", i, errs[i])
	}
	for _, i := range []int{1, 4} {
		b.requireBehind(errs[i], fmt.Sprintf("event %d", i))
	}
	all := append(before, events...)
	b.requireAbsent(all, 3, 6)

	b.Set(Healthy)
	b.settle(events)
	b.requireInOrder(all)
}

// hangingBroker: Publish returns when its context ends. It refuses no event and reports none as delivered.
func hangingBroker(b *bench) {
	before := b.events("a", "b")
	b.must(before)
	b.Set(Hanging)
	events := b.events("a", "a", "b", "")
	ctx, cancel := context.WithTimeout(b.Context(), 200*time.Millisecond)
	defer cancel()
	for i, err := range b.within(ctx, events) {
		require.Error(b, err, "event %d", i)
		require.False(b, outbox.IsPermanent(err), "event %d: %v", i, err)
		if i == 0 {
			require.False(b, errors.Is(err, outbox.ErrBehind), "the first event has no failed event before it")
		}
	}
	all := append(before, events...)
	b.requireAbsent(all, 3)

	b.Set(Healthy)
	b.settle(events)
	b.requireInOrder(all)
}

// nothingLost publishes as a dispatcher does, with failed events first, while the broker has one fault after another.
func nothingLost(b *bench) {
	keys := make([]string, 400)
	for i := range keys {
		if i%10 > 0 {
			keys[i] = fmt.Sprintf("key %d", i%16)
		}
	}
	all := b.events(keys...)
	var pending []publish.Outgoing
	for at := 0; at < len(all); at += 40 {
		pending = append(pending, all[at:at+40]...)
		fault := Fault(at / 40 % 4)
		if !b.has(fault) {
			fault = Healthy
		}
		b.Set(fault)
		ctx, cancel := context.WithTimeout(b.Context(), b.patience)
		if fault == Hanging {
			ctx, cancel = context.WithTimeout(b.Context(), 100*time.Millisecond)
		}
		errs := b.within(ctx, pending)
		cancel()
		b.Set(Healthy)
		pending = b.failed(pending, errs)
	}
	b.settle(pending)
	b.requireInOrder(all)
}

// failed returns the events that have failed. It fails if an event was refused, or sent behind a failed one of its key.
func (b *bench) failed(events []publish.Outgoing, errs []error) []publish.Outgoing {
	b.Helper()
	var failed []publish.Outgoing
	held := make(map[string]uuid.UUID)
	for i, err := range errs {
		o := events[i]
		require.False(b, outbox.IsPermanent(err), "event %d: %v", i, err)
		if err != nil {
			failed = append(failed, o)
			held[o.Key] = o.ID
			continue
		}
		require.False(b, o.Key != "" && held[o.Key] != uuid.Nil, "event %d was sent behind a failed one", i)
	}
	return failed
}

// settle publishes until a broker that is healthy again has all events. The first attempts may still meet the fault.
func (b *bench) settle(events []publish.Outgoing) {
	b.Helper()
	for deadline := time.Now().Add(b.patience); len(events) > 0; {
		errs := b.try(events)
		pending := b.failed(events, errs)
		require.True(b, len(pending) == 0 || time.Now().Before(deadline), "still failing: %v", errors.Join(errs...))
		if len(pending) > 0 {
			<-time.After(10 * time.Millisecond)
		}
		events = pending
	}
}
