package publishtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// events makes an event per key, in order.
func (b *bench) events(keys ...string) []publish.Outgoing {
	events := make([]publish.Outgoing, len(keys))
	for i, key := range keys {
		id, err := uuid.NewV7()
		require.NoError(b, err)
		b.made++
		events[i] = publish.Outgoing{
			Event: outbox.Event{
				ID: id, Namespace: "users", Topic: "user_renamed", Version: 1, PartitionKey: key, Attempt: 1, MaxAttempts: 5,
				CreatedAt: time.Date(2026, 11, 21, 13, 14, 15, 123456000, time.UTC),
			},
			Payload:     json.RawMessage(fmt.Sprintf(`{"n": %d, "name": "Zoë"}`, b.made)),
			Destination: b.Destination,
			Key:         key,
		}
	}
	return events
}

// overwritten is the byte in each place of a payload after Publish has returned. No event has a payload like that.
const overwritten = "x"

// publish hands a copy of the events to the publisher and then overwrites the copy: Publish must not retain events.
func (b *bench) publish(ctx context.Context, events []publish.Outgoing) []error {
	given := slices.Clone(events)
	for i := range given {
		given[i].Payload = slices.Clone(given[i].Payload)
		given[i].Headers = maps.Clone(given[i].Headers)
	}
	errs := b.Publisher.Publish(ctx, given)
	for i := range given {
		for at := range given[i].Payload {
			given[i].Payload[at] = overwritten[0]
		}
		clear(given[i].Headers)
		given[i] = publish.Outgoing{}
	}
	return errs
}

// try publishes within the suite's patience. It fails unless there is one result per event.
func (b *bench) try(events []publish.Outgoing) []error {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), b.patience)
	defer cancel()
	return b.within(ctx, events)
}

// within publishes. It fails unless Publish returns when ctx ends, with one result per event.
func (b *bench) within(ctx context.Context, events []publish.Outgoing) []error {
	b.Helper()
	result := make(chan []error, 1)
	go func() { result <- b.publish(ctx, events) }()
	late := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(b.patience, func() { close(late) }) })
	defer stop()
	select {
	case errs := <-result:
		require.Len(b, errs, len(events), "one result per event")
		return errs
	case <-late:
		require.FailNow(b, "Publish did not return after its context had ended")
		return nil
	}
}

// must publishes to a healthy broker. It fails unless the broker takes all events. No promise says how fast that is: the limit,
// longer than that of the promises, only ends what hangs.
func (b *bench) must(events []publish.Outgoing) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 10*b.patience)
	defer cancel()
	for i, err := range b.within(ctx, events) {
		require.NoError(b, err, "event %d of %d", i, len(events))
	}
}

// ids returns the ids of the events that the broker has, in the broker's order. It fails if the broker has another event.
func (b *bench) ids(events []publish.Outgoing) []uuid.UUID {
	b.Helper()
	known := make(map[string]bool)
	for _, o := range events {
		known[o.ID.String()] = true
	}
	var ids []uuid.UUID
	for _, m := range b.received() {
		require.True(b, known[m.Attributes["id"]], "the broker has an event that was not sent: %q", m.Attributes["id"])
		ids = append(ids, uuid.MustParse(m.Attributes["id"]))
	}
	return ids
}

// received returns what the broker has. It fails for a message that the suite cannot compare with its event.
func (b *bench) received() []publish.Message {
	b.Helper()
	messages := b.Received()
	for i, m := range messages {
		require.NotEmpty(b, m.Attributes["id"], "message %d has no attribute id: does Received restore Attributes? It has the attributes %v and the headers %v",
			i, slices.Sorted(maps.Keys(m.Attributes)), slices.Sorted(maps.Keys(m.Headers)))
		require.False(b, len(m.Body) > 0 && len(bytes.Trim(m.Body, overwritten)) == 0,
			"message %d has a payload that was changed after Publish returned: Publish, or the broker of the test, must copy it", i)
	}
	return messages
}

// requireOnce fails unless the broker has each of the events once, in order per key.
func (b *bench) requireOnce(events []publish.Outgoing) {
	b.Helper()
	require.Len(b, b.ids(events), len(events), "each event once")
	b.requireInOrder(events)
}

// requireInOrder fails unless the broker has each of the events, and their first copies in order per key.
func (b *bench) requireInOrder(events []publish.Outgoing) {
	b.Helper()
	got := b.ids(events)
	first := make(map[uuid.UUID]int)
	for at, id := range slices.Backward(got) {
		first[id] = at
	}
	last := make(map[string]int)
	for i, o := range events {
		at, there := first[o.ID]
		require.True(b, there, "event %d is lost", i)
		if o.Key == "" {
			continue
		}
		if before, follows := last[o.Key]; follows {
			require.Greater(b, at, before, "event %d has overtaken another event with its key %q", i, o.Key)
		}
		last[o.Key] = at
	}
}

// requireAbsent fails if the broker has one of the events at the positions absent. all are the events that were sent.
func (b *bench) requireAbsent(all []publish.Outgoing, absent ...int) {
	b.Helper()
	got := b.ids(all)
	for _, i := range absent {
		require.NotContains(b, got, all[i].ID, "the broker must not have event %d", i)
	}
}

// requireAttempt fails unless err is a failed attempt: not nil, and not marked as another outcome.
func (b *bench) requireAttempt(err error, what string) {
	b.Helper()
	require.Error(b, err, what)
	require.False(b, outbox.IsPermanent(err), "%s must not be permanent: %v", what, err)
	require.False(b, outbox.IsUnavailable(err), "%s must be a failed attempt: %v", what, err)
	require.False(b, errors.Is(err, outbox.ErrBehind), "%s has no failed event before it", what)
	require.False(b, errors.Is(err, outbox.ErrNotSent), "%s may have been sent: %v", what, err)
}

// requireBehind fails unless err is ErrBehind, and not permanent.
func (b *bench) requireBehind(err error, what string) {
	b.Helper()
	require.ErrorIs(b, err, outbox.ErrBehind, what)
	require.False(b, outbox.IsPermanent(err), "%s must not be permanent", what)
}

// has reports whether the broker can have a fault.
func (b *bench) has(f Fault) bool { return !slices.Contains(b.lacks, f) }
