package publishtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/broker/wireheader"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

func everythingArrives(b *bench) {
	events := b.events("a", "b", "", "a", "")
	b.must(events)
	b.requireOnce(events)
	more := b.events("a", "", "c")
	b.must(more)
	b.requireOnce(append(events, more...))
}

// envelopeSurvives sends an event with every fact, in characters that are difficult for protocols.
func envelopeSurvives(b *bench) {
	o := b.events("Zoë/100% \"quoted\", a=b;c")[0]
	o.Version = 7
	o.TenantID = uuid.NullUUID{UUID: uuid.MustParse("7f000001-89ab-4cde-8f01-23456789abcd"), Valid: true}
	o.DedupeKey = o.TenantID.UUID.String() + "/17"
	o.Entity = outbox.Entity{Type: "user", ID: "17 %2F +ü", Version: 1<<53 + 1}
	o.Headers = map[string]string{
		"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b,c=d",
		"causation_id": "0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e10", "correlation_id": "request 17, \"Zoë\"",
		"x-reason": "marriage; by=\"law\", 100%", "x-empty": "", "x-!#$%&'*+.^_`|~": "tab\tand Zoë 😀",
		"x-" + strings.Repeat("n", wireheader.MaxName-2): "the longest name",
	}
	o.Payload = json.RawMessage(`{"name": "Zoë 😀 <&>", "big": 9007199254740993, "nested": {"list": [1, 2.50, null]}}`)
	want, err := publish.CloudEvents("", publish.Binary)(o)
	require.NoError(b, err)

	b.must([]publish.Outgoing{o})
	received := b.received()
	require.Len(b, received, 1)
	got := received[0]
	require.Equal(b, want.Attributes, got.Attributes, "Received must restore Attributes: their plain names and decoded values")
	require.Equal(b, want.ContentType, got.ContentType, "Received must restore ContentType")
	require.Equal(b, string(want.Body), string(got.Body), "the body must be the payload, byte for byte")
	headers := make(map[string]string)
	for name, value := range got.Headers {
		headers[strings.ToLower(name)] = value
	}
	for name, value := range want.Headers {
		require.Contains(b, headers, name, "a header of the event is missing. If all are: copy Headers, which are cleared after Publish returned")
		require.Equal(b, value, headers[name], "header %s", name)
	}
}

func emptyBatch(b *bench) {
	require.Empty(b, b.Publisher.Publish(b.Context(), nil))
	require.Empty(b, b.Publisher.Publish(b.Context(), []publish.Outgoing{}))
	require.Empty(b, b.Received())
}

func largeBatch(b *bench) {
	keys := make([]string, 2000)
	for i := range keys {
		if i%5 > 0 {
			keys[i] = fmt.Sprintf("key %d", i%64)
		}
	}
	events := b.events(keys...)
	events[500].Payload = json.RawMessage(`"` + strings.Repeat("x", 256<<10) + `"`)
	b.must(events)
	b.requireOnce(events)
}

func orderWithinKey(b *bench) {
	var all []publish.Outgoing
	for range 5 {
		keys := make([]string, 60)
		for i := range keys {
			keys[i] = fmt.Sprintf("key %d", i%4)
		}
		events := b.events(keys...)
		b.must(events)
		all = append(all, events...)
	}
	b.requireOnce(all)
}

// concurrentCalls lets each caller publish its own keys, as dispatchers do.
func concurrentCalls(b *bench) {
	const callers, calls = 8, 10
	batches := make([][]publish.Outgoing, callers*calls)
	var all []publish.Outgoing
	for i := range batches {
		one, other := fmt.Sprintf("%d first", i%callers), fmt.Sprintf("%d second", i%callers)
		batches[i] = b.events(one, other, one, "", other, one, "")
		all = append(all, batches[i]...)
	}
	results := make([][]error, len(batches))
	var callersDone sync.WaitGroup
	for caller := range callers {
		callersDone.Go(func() {
			for i := caller; i < len(batches); i += callers {
				results[i] = b.publish(b.Context(), batches[i])
			}
		})
	}
	callersDone.Wait()
	for i, errs := range results {
		require.Len(b, errs, len(batches[i]))
		for _, err := range errs {
			require.NoError(b, err)
		}
	}
	b.requireOnce(all)
}

// refusedEvent: an event that the broker will never take is permanent. It holds up its key and no other event.
func refusedEvent(b *bench) {
	events := b.events("a", "a", "a", "b", "", "")
	b.Refuse(&events[1])
	b.Refuse(&events[4])
	errs := b.try(events)
	require.NoError(b, errs[0], "before the refused event")
	require.True(b, outbox.IsPermanent(errs[1]), "the refused event: %v", errs[1])
	b.requireBehind(errs[2], "behind the refused event")
	require.NoError(b, errs[3], "another key")
	require.True(b, outbox.IsPermanent(errs[4]), "the refused event without a key: %v", errs[4])
	require.NoError(b, errs[5], "without a key")
	b.requireAbsent(events, 1, 2, 4)

	b.must(events[2:3]) // the refused event is a dead letter now
	b.requireOnce([]publish.Outgoing{events[0], events[2], events[3], events[5]})
}

// refusedInALargeBatch: among many events of several keys, none is sent behind an event of its key that the broker refuses. When
// the refused ones are dead letters, the others follow in order.
func refusedInALargeBatch(b *bench) {
	keys := make([]string, 120)
	for i := range keys {
		keys[i] = fmt.Sprintf("key %d", i%7)
	}
	events := b.events(keys...)
	var good []publish.Outgoing
	for i := range events {
		if i%11 == 5 {
			b.Refuse(&events[i])
		} else {
			good = append(good, events[i])
		}
	}
	for left := events; len(left) > 0; {
		var absent []int
		var behind []publish.Outgoing
		failed := make(map[string]bool) // keys
		errs := b.try(left)
		for i, err := range errs {
			o := left[i]
			switch {
			case failed[o.Key]:
				b.requireBehind(err, "behind a refused event")
				behind = append(behind, o)
			case err != nil:
				require.True(b, outbox.IsPermanent(err), "a refused event: %v", err)
				failed[o.Key] = true
			default:
				continue
			}
			absent = append(absent, slices.IndexFunc(events, func(e publish.Outgoing) bool { return e.ID == o.ID }))
		}
		b.requireAbsent(events, absent...)
		left = behind
	}
	b.requireOnce(good)
}

// unencodableEvent: an event that the encoder refuses is like one that the broker refuses.
func unencodableEvent(b *bench) {
	events := b.events("a", "a", "a", "b", "")
	events[1].Entity = outbox.Entity{Type: "user", ID: "a\nb"} // is not valid in a CloudEvent
	errs := b.try(events)
	require.NoError(b, errs[0])
	require.True(b, outbox.IsPermanent(errs[1]), "cannot be encoded: %v", errs[1])
	b.requireBehind(errs[2], "behind the event that cannot be encoded")
	require.NoError(b, errs[3])
	require.NoError(b, errs[4])
	b.requireOnce([]publish.Outgoing{events[0], events[3], events[4]})
}

// endedContext: nothing is sent, no attempt is counted, and all events can be sent later.
func endedContext(b *bench) {
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	events := b.events("a", "a", "")
	for i, err := range b.within(ctx, events) {
		require.True(b, errors.Is(err, outbox.ErrNotSent) || i == 1 && errors.Is(err, outbox.ErrBehind),
			"event %d was not sent and must be outbox.ErrNotSent: %v", i, err)
		require.False(b, outbox.IsPermanent(err), "event %d: %v", i, err)
	}
	b.requireAbsent(events, 0, 1, 2)
	b.must(events)
	b.requireInOrder(events)
}
