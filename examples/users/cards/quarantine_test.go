package cards_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/examples/users/cards"
	"github.com/outboxgen/outboxgen/publish"
)

// TestUnreadableMessagesAreQuarantined: whatever message arrives, the projection keeps it with the reason and continues.
func TestUnreadableMessagesAreQuarantined(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(e *publish.Outgoing)
		raw   *kgo.Record // instead of an event
		want  string
	}{
		"newer version": {spoil: func(e *publish.Outgoing) { e.Version = 2 }, want: "consume user/created version 2, event "},
		"unknown topic": {spoil: func(e *publish.Outgoing) { e.Topic = "promoted" }, want: "consume user/promoted"},
		"no JSON":       {spoil: func(e *publish.Outgoing) { e.Payload = json.RawMessage("{") }, want: "payload is not JSON"},
		"missing field": {spoil: func(e *publish.Outgoing) { e.Payload = json.RawMessage("{}") }, want: "field tenant_id is missing"},
		"no UUID": {spoil: func(e *publish.Outgoing) { e.Payload = json.RawMessage(`{"tenant_id": "S3CRET"}`) },
			want: "field tenant_id does not fit uuid.UUID"},
		"no event": {raw: &kgo.Record{Key: []byte{0, 0xff}, Value: []byte{0, 0xff}, Headers: []kgo.RecordHeader{{Key: "\x00\xff", Value: nil}}},
			want: "malformed message"},
		"null": {raw: &kgo.Record{}, want: "malformed message"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			if test.raw != nil {
				f.produce(test.raw)
			} else {
				events, _ := f.life(0, false)
				test.spoil(&events[0])
				f.publish(events[0])
			}
			events, want := f.life(1, false)
			f.publish(events...)
			p := f.project()
			f.requireCards(want)
			require.Equal(t, cards.Counts{Applied: 2, Quarantined: 1}, p.Counts())
			var reason string
			require.NoError(t, f.pool.QueryRow(t.Context(), "SELECT reason FROM cards.quarantined").Scan(&reason))
			require.Contains(t, reason, test.want)
			require.NotContains(t, reason, "S3CRET")

			through, left, err := p.Retry(t.Context())
			require.NoError(t, err)
			require.Zero(t, through)
			require.Equal(t, 1, left)
			require.NoError(t, p.Rebuild(t.Context()))
			f.project()
			require.Equal(t, 1, f.count("SELECT count(*) FROM cards.quarantined"), "the same message, kept once")
		})
	}
}

// TestRetry: after the cause is fixed, the quarantined messages succeed, and those that are late by then change nothing.
func TestRetry(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, wantFirst := f.life(0, false)
	second, wantSecond := f.life(1, false)
	third, _ := f.life(0, false)
	first[0].Version, second[0].Version, third[0].Version = 2, 2, 3 // from a producer that was upgraded first
	f.publish(first[0], second[0], second[1], third[0])
	p := f.project()
	f.requireCards(wantSecond)
	require.Equal(t, 3, f.count("SELECT count(*) FROM cards.quarantined"))

	f.exec(`
		UPDATE cards.quarantined
		SET header_values[array_position(header_names, 'ce_dataversion')] = '1'
		WHERE header_values[array_position(header_names, 'ce_dataversion')] = '2'`)
	through, left, err := p.Retry(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, through)
	require.Equal(t, 1, left)
	f.requireCards(wantFirst, wantSecond)
	require.Equal(t, cards.Counts{Applied: 2, Skipped: 1, Quarantined: 3}, p.Counts())
	require.Equal(t, 1, f.count("SELECT count(*) FROM cards.quarantined"))
}

// TestTooManyQuarantined: a projection that can no longer read any message stops, and has not acknowledged a message that
// it did not keep.
func TestTooManyQuarantined(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	user := uuid.NewString() // one partition
	for range 4 {
		events, _ := f.life(0, false)
		events[0].Version, events[0].Key = 2, user
		f.publish(events[0])
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p := f.projection(func(cfg *cards.Config) { cfg.MaxQuarantined = 3 })
	err := p.Run(ctx)
	require.ErrorIs(t, err, cards.ErrTooManyQuarantined)
	require.ErrorIs(t, err, consume.ErrUnknownVersion)
	require.NoError(t, ctx.Err())
	require.Equal(t, 3, f.count("SELECT count(*) FROM cards.quarantined"))
	group, err := p.Group(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, f.lag(group))

	f.project()
	require.Equal(t, 4, f.count("SELECT count(*) FROM cards.quarantined"))
}

// TestGivesUp: an effect that keeps failing ends Run, and the event stays for the next Run.
func TestGivesUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''not today''; END';
		CREATE TRIGGER refuse BEFORE UPDATE ON cards.cards FOR EACH ROW EXECUTE FUNCTION refuse()`)
	events, want := f.life(2, false)
	f.publish(events...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p := f.projection(func(cfg *cards.Config) { cfg.Attempts = 2 })
	err := p.Run(ctx)
	require.ErrorContains(t, err, "gave up after 2 attempts: consume user/renamed version 1, event "+events[1].ID.String())
	require.ErrorContains(t, err, "not today")
	require.NoError(t, ctx.Err())
	require.Equal(t, 1, f.count("SELECT count(*) FROM cards_inbox.processed_events"), "only the creation is recorded")

	f.exec("DROP TRIGGER refuse ON cards.cards")
	f.project()
	f.requireCards(want)
	f.requireEachOnce(3)
}
