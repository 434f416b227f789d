package inbox_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/inbox"
)

// TestByDedupeKey: events of two producers with one type and key have one effect, with and without an entity version, in
// whatever call; by default they are two events.
func TestByDedupeKey(t *testing.T) {
	t.Parallel()
	pool := database(t)
	byKey, byID := newInbox(t, inbox.Config{Identity: inbox.ByDedupeKey}), newInbox(t, inbox.Config{Group: "other"})
	event := func(kind, key string, version int64) inbox.Event {
		return inbox.Event{ID: uuid.New(), Type: kind, DedupeKey: key, EntityType: "invoice", EntityID: key, Version: version}
	}
	apply := func(in *inbox.Inbox, e inbox.Event) inbox.Outcome {
		tx := begin(t, pool, "")
		outcome, err := in.Apply(t.Context(), tx, e, nothing)
		require.NoError(t, err)
		require.NoError(t, tx.Commit(t.Context()))
		return outcome
	}
	require.Equal(t, inbox.Applied, apply(byKey, event("billing.paid", "4711", 1)))
	require.Equal(t, inbox.Duplicate, apply(byKey, event("billing.paid", "4711", 2)), "another producer")
	require.Equal(t, inbox.Applied, apply(byKey, event("billing.sent", "4711", 2)), "another type")
	require.Equal(t, inbox.Applied, apply(byID, event("billing.paid", "4711", 1)))
	require.Equal(t, inbox.Applied, apply(byID, event("billing.paid", "4711", 2)), "another event")

	tx := begin(t, pool, "")
	events := []inbox.Event{
		event("billing.paid", "4711", 0), event("billing.paid", "4712", 0), event("billing.paid", "4712", 0),
		event("billing.paid", "", 0), event("billing.paid", "", 0),
	}
	ids := []uuid.UUID{events[0].ID, events[1].ID}
	outcomes, err := byKey.Record(t.Context(), tx, events)
	require.NoError(t, err)
	require.Equal(t, []inbox.Outcome{inbox.Duplicate, inbox.Applied, inbox.Duplicate, inbox.Applied, inbox.Applied}, outcomes,
		"events without a key are told by their ids")
	require.Equal(t, ids, []uuid.UUID{events[0].ID, events[1].ID}, "the events of the caller do not change")
	handled, err := byKey.Once(t.Context(), tx, byKey.RecordID(event("billing.paid", "4712", 0)), never(t))
	require.NoError(t, err)
	require.False(t, handled)
}

func TestKeyID(t *testing.T) {
	t.Parallel()
	id := inbox.KeyID("billing.paid", "4711")
	require.Equal(t, uuid.MustParse("33a8e09f-9064-8b91-83ca-194ee70a8970"), id, "records must be found again after an upgrade")
	require.Equal(t, uuid.Version(8), id.Version())
	require.Equal(t, uuid.RFC4122, id.Variant())
	require.NotEqual(t, inbox.KeyID("a", "b/c"), inbox.KeyID("a/b", "c"))
	event := inbox.Event{ID: uuid.New(), Type: "billing.paid", DedupeKey: "4711"}
	require.Equal(t, event.ID, newInbox(t, inbox.Config{}).RecordID(event))
	require.Equal(t, id, newInbox(t, inbox.Config{Identity: inbox.ByDedupeKey}).RecordID(event))
	_, err := inbox.New(inbox.Config{Group: group, Identity: "key"})
	require.EqualError(t, err, `new inbox: field Identity "key" is not valid: use id or dedupe_key`)
}
