package cards_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/examples/users/cards"
	"github.com/outboxgen/outboxgen/publish"
)

// TestUnreadableMessagesAreDeadLetters: whatever message arrives, the projection keeps it with the reason and continues.
func TestUnreadableMessagesAreDeadLetters(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(e *publish.Outgoing)
		raw   *kgo.Record // instead of an event
		want  string
	}{
		"newer version": {spoil: func(e *publish.Outgoing) { e.Version = 2 }, want: "consume user/created version 2, event "},
		"unknown topic": {spoil: func(e *publish.Outgoing) { e.Topic = "promoted" }, want: "consume user/promoted"},
		"no UUID": {spoil: func(e *publish.Outgoing) { e.Payload = json.RawMessage(`{"tenant_id": "S3CRET"}`) },
			want: "field tenant_id does not fit uuid.UUID"},
		"no event": {raw: &kgo.Record{Key: []byte{0, 0xff}, Value: []byte{0, 0xff}, Headers: []kgo.RecordHeader{{Key: "\x00\xff", Value: nil}}},
			want: "malformed message"},
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
			require.Equal(t, cards.Counts{Applied: 2, Dead: 1}, p.Counts())
			var reason string
			require.NoError(t, f.pool.QueryRow(t.Context(), "SELECT error FROM cards_inbox.inbox_messages WHERE status = 'dead'").Scan(&reason))
			require.Contains(t, reason, test.want)
			require.NotContains(t, reason, "S3CRET")
			require.NoError(t, p.Rebuild(t.Context()))
			f.project()
			require.Equal(t, 1, f.count("SELECT count(*) FROM cards_inbox.inbox_messages"))
		})
	}
}

// TestReplay: after the cause is fixed, dead letters that are replayed succeed, and those that are late by then change nothing.
func TestReplay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, wantFirst := f.life(0, false)
	second, wantSecond := f.life(1, false)
	first[0].Version, second[0].Version = 2, 2 // from a producer that was upgraded first
	f.publish(first[0], second[0], second[1])
	p := f.project()
	f.requireCards(wantSecond)
	require.EqualValues(t, 2, p.Counts().Dead)

	f.exec(`UPDATE cards_inbox.inbox_messages SET envelope = jsonb_set(envelope::jsonb, '{attributes,dataversion}', '"1"')::json`) // in place of an upgrade
	ops, err := admin.New(f.pool, cards.InboxSchema)
	require.NoError(t, err)
	report, err := ops.Replay(t.Context(), admin.Filter{Consumer: "cards"}, admin.Act{Who: "test"})
	require.NoError(t, err)
	require.EqualValues(t, 2, report.Done)
	stop := f.start(p)
	require.Eventually(t, func() bool { return f.count("SELECT count(*) FROM cards_inbox.inbox_messages") == 0 }, patience, look)
	require.NoError(t, stop())
	f.requireCards(wantFirst, wantSecond)
	require.Equal(t, cards.Counts{Applied: 2, Skipped: 1, Dead: 2}, p.Counts())
}

// TestAFailingUserWaits: while the events of a user fail, those of others continue. Later the user's events are applied in
// order.
func TestAFailingUserWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''not today''; END';
		CREATE TRIGGER refuse BEFORE UPDATE ON cards.cards FOR EACH ROW EXECUTE FUNCTION refuse()`)
	events, want := f.life(2, false)
	others, wantOther := f.life(0, false)
	f.publish(append(events, others...)...)
	p := f.project(func(cfg *cards.Config) {
		cfg.Receive.Attempts, cfg.Receive.BaseDelay, cfg.Receive.MaxAttempts = 1, 1, 1_000_000
	})
	require.EqualValues(t, 2, p.Counts().Parked)
	require.Equal(t, 2, f.count("SELECT count(*) FROM cards.cards"))

	f.exec("DROP TRIGGER refuse ON cards.cards")
	stop := f.start(f.projection(func(cfg *cards.Config) { cfg.Receive = receive.Config{Logger: cfg.Receive.Logger} }))
	require.Eventually(t, func() bool { return f.count("SELECT count(*) FROM cards_inbox.inbox_messages") == 0 }, patience, look)
	require.NoError(t, stop())
	f.requireCards(want, wantOther)
	f.requireEachOnce(4)
}
