package admin_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

type welcomed struct {
	Name string `json:"name"`
}

// broken is a consumer that refuses every event until it is repaired.
type broken struct{ repaired atomic.Bool }

func (b *broken) ConsumeWelcomed(ctx context.Context, tx pgx.Tx, d consume.Delivery[welcomed]) error {
	if !b.repaired.Load() {
		return consume.Permanent(errors.New("no such name"))
	}
	_, err := tx.Exec(ctx, "INSERT INTO effects (name) VALUES ($1)", d.Payload.Name)
	return err
}

// TestDeadLettersOfConsumers: what a consumer group could not apply is listed, replayed and discarded like other dead letters,
// and only if the filter names the group.
func TestDeadLettersOfConsumers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, "CREATE TABLE effects (no bigint GENERATED ALWAYS AS IDENTITY, name text NOT NULL)")
	ops, err := admin.New(pool, "")
	require.NoError(t, err)
	b := &broken{}
	of := func(group string) *receive.Receiver {
		ib, err := inbox.New(inbox.Config{Group: group})
		require.NoError(t, err)
		topic := consume.NewTopic[welcomed](consume.TopicSpec{Namespace: "users", Name: "welcomed"})
		c, err := consume.New(ib, consume.Handle(topic, b, (*broken).ConsumeWelcomed))
		require.NoError(t, err)
		r, err := receive.New(pool, c, receive.Config{PollInterval: 10 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		return r
	}
	message := func(n int, id uuid.UUID) receive.Message {
		return receive.Message{
			Message: consume.Message{
				ContentType: "application/json", Body: fmt.Appendf(nil, `{"name":"n%d"}`, n), Headers: map[string]string{"trace": "t"},
				Attributes: map[string]string{"specversion": "1.0", "id": id.String(), "type": "users.welcomed", "source": "/users"},
			},
			Place: fmt.Sprintf("kafka:users/0@%d", n), Key: "k",
		}
	}
	var ids []uuid.UUID
	var ms []receive.Message
	for n := range 5 {
		ids = append(ids, uuid.Must(uuid.NewV7()))
		ms = append(ms, message(n, ids[n]))
	}
	cards := of("cards")
	_, err = cards.Receive(t.Context(), ms)
	require.NoError(t, err)
	_, err = cards.Receive(t.Context(), []receive.Message{{Message: consume.Message{Body: []byte("\xff")}, Place: "kafka:users/0@9"}})
	require.NoError(t, err)
	_, err = of("other").Receive(t.Context(), ms)
	require.NoError(t, err)

	letters, err := ops.DeadLetters(t.Context(), admin.Filter{}, 0, 100)
	require.NoError(t, err)
	require.Empty(t, letters)
	groups, err := ops.DeadConsumers(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"cards", "other"}, groups)

	f := admin.Filter{Consumer: "cards"}
	grouped, err := ops.DeadGroups(t.Context(), f)
	require.NoError(t, err)
	require.Len(t, grouped, 2)
	require.Equal(t, []any{int64(5), "users", "welcomed", "cards"}, []any{grouped[0].Count, grouped[0].Namespace, grouped[0].Topic, grouped[0].Consumer})
	require.Equal(t, "unreadable", grouped[1].Topic)
	letters, err = ops.DeadLetters(t.Context(), f, 0, 3)
	require.NoError(t, err)
	require.Len(t, letters, 3)
	require.Equal(t, []byte("\xff"), letters[0].Body)
	require.Nil(t, letters[0].Payload)
	d := letters[1]
	require.Equal(t, []any{"cards", "kafka:users/0@4", ids[4], "users", "welcomed", "k", "t", "users.welcomed"},
		[]any{d.Consumer, d.Place, d.ID, d.Namespace, d.Topic, d.PartitionKey, d.Headers["trace"], d.Headers["ce_type"]})
	require.JSONEq(t, `{"name":"n4"}`, string(d.Payload))
	letters, err = ops.DeadLetters(t.Context(), f, letters[2].No, 10)
	require.NoError(t, err)
	require.Len(t, letters, 3, "the next page")
	letters, err = ops.DeadLetters(t.Context(), admin.Filter{Consumer: "cards", IDs: ids[:2]}, 0, 10)
	require.NoError(t, err)
	require.Len(t, letters, 2)

	act := admin.Act{Who: "me", Why: "repaired"}
	report, err := ops.Discard(t.Context(), admin.Filter{Consumer: "cards", Group: grouped[1].ID}, act)
	require.NoError(t, err)
	require.Equal(t, int64(1), report.Done)
	b.repaired.Store(true)
	report, err = ops.Replay(t.Context(), f, admin.Act{DryRun: true})
	require.NoError(t, err)
	require.Equal(t, admin.Report{Matched: 5}, report)
	report, err = ops.Replay(t.Context(), f, act)
	require.NoError(t, err)
	require.Equal(t, admin.Report{Matched: 5, Done: 5}, report)
	again, err := ops.Replay(t.Context(), f, act)
	require.NoError(t, err)
	require.Zero(t, again.Matched)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- cards.Run(ctx) }()
	pgtest.Settles(t, pool, 5, "SELECT count(*) FROM effects")
	pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.inbox_messages WHERE consumer_group = 'cards'")
	cancel()
	require.NoError(t, pgtest.Receive(t, ended, "the end of Run"))
	require.Equal(t, []string{"n0", "n1", "n2", "n3", "n4"}, pgtest.Value[[]string](t, pool, "SELECT array_agg(name ORDER BY no) FROM effects"), "in order")
	require.Equal(t, 5, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.inbox_messages WHERE consumer_group = 'other' AND status = 'dead'"))

	audit, err := ops.Audit(t.Context(), admin.AuditFilter{}, admin.Page{})
	require.NoError(t, err)
	require.Equal(t, "consumer cards", audit.Entries[0].Scope)
	require.Equal(t, []any{"replay", int64(5)}, []any{audit.Entries[0].Action, audit.Entries[0].Events})
	_, err = ops.Discard(t.Context(), admin.Filter{Consumer: "cards", Listener: "l"}, act)
	require.ErrorContains(t, err, "Consumer and Listener cannot both be set")
	_, err = ops.Events(t.Context(), f, admin.Page{})
	require.ErrorContains(t, err, "Consumer selects dead letters only")
}

// putKept keeps n messages of a consumer group with a status, which arrived and are due so long ago.
func putKept(t testing.TB, pool *pgxpool.Pool, group, status string, n int, arrived, due, text string) {
	t.Helper()
	pgtest.Execute(t, pool, `INSERT INTO outbox.inbox_messages (consumer_group, message_id, place, key, type, namespace, topic, version, envelope, body,
			status, attempts, next_attempt_at, error, received_at, failed_at)
		SELECT $1, gen_random_uuid()::text, 'kafka:users/0@' || n, 'k', 'users.welcomed', 'users', 'welcomed', 1, '{}', '{}', $2, 4,
			now() - $5::text::interval, $6 || ' ' || n, now() - $4::text::interval + n * interval '1 s', now() - $4::text::interval + n * interval '1 s'
		FROM generate_series(1, $3::int) AS n`, group, status, n, arrived, due, text)
}

// TestConsumers: each consumer group that keeps messages is listed with how many, the oldest parked one and the latest dead
// one, also in the overview.
func TestConsumers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	ops, err := admin.New(pool, "")
	require.NoError(t, err)
	list, err := ops.Consumers(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)
	putKept(t, pool, "mail", "dead", 3, "2 h", "2 h", "no such mailbox")
	putKept(t, pool, "cards", "parked", 2, "1 h", "-1 h", "no such tenant")
	putKept(t, pool, "cards", "dead", 1, "3 h", "3 h", "no such name")
	putKept(t, pool, "late", "parked", 1, "1 h", "30 min", "timeout")
	pgtest.Execute(t, pool, "UPDATE outbox.inbox_messages SET next_attempt_at = 'infinity' WHERE consumer_group = 'cards' AND error LIKE '% 2'")
	list, err = ops.Consumers(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 3)
	cards, late, mail := list[0], list[1], list[2]
	require.Equal(t, []any{"cards", exactly(2), exactly(1), 4, "no such tenant 1", "no such name 1"}, []any{cards.Consumer, cards.Parked, cards.Dead, cards.Attempts, cards.Error, cards.DeadError})
	require.InDelta(t, time.Hour, cards.Oldest, float64(10*time.Minute))
	require.Zero(t, cards.Overdue, "it is due later, or waits")
	require.Equal(t, []any{"late", exactly(1), exactly(0), ""}, []any{late.Consumer, late.Parked, late.Dead, late.DeadError})
	require.InDelta(t, 30*time.Minute, late.Overdue, float64(10*time.Minute))
	require.True(t, late.FirstDiedAt.IsZero())
	require.Equal(t, []any{"mail", exactly(0), exactly(3), "", "no such mailbox 3"}, []any{mail.Consumer, mail.Parked, mail.Dead, mail.Error, mail.DeadError})
	require.Zero(t, mail.Oldest)
	require.Equal(t, 2*time.Second, mail.LastDiedAt.Sub(mail.FirstDiedAt))
	o, err := ops.Overview(t.Context())
	require.NoError(t, err)
	require.Len(t, o.Consumers, 3)
	require.Equal(t, mail, o.Consumers[2])
}

// TestDoctorKnowsConsumers: messages that wait for long are a warning, and dead letters a notice.
func TestDoctorKnowsConsumers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	putKept(t, pool, "young", "parked", 1, "1 min", "-1 min", "timeout")
	require.Empty(t, diagnose(t, pool, admin.DoctorConfig{}))
	putKept(t, pool, "cards", "parked", 1, "3 h", "-1 h", "no such tenant")
	putKept(t, pool, "late", "parked", 2, "4 h", "3 h", "timeout")
	putKept(t, pool, "mail", "dead", 2, "3 h", "3 h", "consume users/renamed version 1, event 01a2091f-7641-7c00-8000-0123456789ab: no such mailbox")
	found := diagnose(t, pool, admin.DoctorConfig{})
	require.Len(t, found, 3, "%+v", found)
	for i, want := range []struct {
		severity  admin.Severity
		text, fix string
	}{
		{admin.SeverityWarning, `^consumer group cards has parked 1 message, the oldest \d+ (h|min) ago, with failed attempts: 4 \(no such tenant 1\)$`, "tries them again by itself"},
		{admin.SeverityWarning, `^consumer group late has parked 2 messages, and one is due since \d+ (h|min)$`, "start a process of the consumer"},
		{admin.SeverityNotice, `^consumer group mail has given 2 messages up, the latest at .*Z \(no such mailbox 2\)$`, "outboxgen dead groups --consumer mail;"},
	} {
		require.Equal(t, "consumers", found[i].Check)
		require.Equal(t, want.severity, found[i].Severity)
		require.Regexp(t, want.text, found[i].Text)
		require.Contains(t, found[i].Fix, want.fix)
	}
}

// TestParked: the messages that a group tries again are listed with what waits behind them, the next one first.
func TestParked(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	ops, err := admin.New(pool, "")
	require.NoError(t, err)
	putKept(t, pool, "cards", "parked", 3, "1 h", "-2 h", "no such tenant")
	putKept(t, pool, "cards", "dead", 1, "1 h", "1 h", "never")
	putKept(t, pool, "other", "parked", 1, "1 h", "1 h", "no")
	pgtest.Execute(t, pool, "UPDATE outbox.inbox_messages SET next_attempt_at = 'infinity' WHERE consumer_group = 'cards' AND status = 'parked' AND no > 1")
	putKept(t, pool, "cards", "parked", 1, "1 h", "-1 h", "of no key")
	pgtest.Execute(t, pool, "UPDATE outbox.inbox_messages SET key = NULL, max_attempts = 25 WHERE error LIKE 'of no key%'")
	list, err := ops.Parked(t.Context(), "cards", 10)
	require.NoError(t, err)
	require.Len(t, list, 2)
	first := list[1]
	require.Equal(t, []any{"", 4, 21, "of no key 1", admin.Count{}}, []any{list[0].Key, list[0].Attempts, list[0].AttemptsLeft, list[0].Error, list[0].Behind})
	require.Equal(t, []any{"k", 4, -1, "no such tenant 1", admin.Count{N: 2}}, []any{list[1].Key, list[1].Attempts, list[1].AttemptsLeft, list[1].Error, list[1].Behind})
	require.WithinDuration(t, time.Now().Add(2*time.Hour), list[1].NextAttemptAt, time.Hour)
	list, err = ops.Parked(t.Context(), "cards", 1)
	require.NoError(t, err)
	require.Len(t, list, 1)
	putKept(t, pool, "many", "parked", 1002, "1 h", "1 h", "no")
	pgtest.Execute(t, pool, `UPDATE outbox.inbox_messages SET max_attempts = 3, next_attempt_at = CASE WHEN error = 'no 1' THEN now() ELSE 'infinity' END
		WHERE consumer_group = 'many'`)
	list, err = ops.Parked(t.Context(), "many", 10)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, []any{0, admin.Count{N: 1000, More: true}}, []any{list[0].AttemptsLeft, list[0].Behind}, "fewer attempts than before are allowed now")
	list, err = ops.Parked(t.Context(), "nobody", 1)
	require.NoError(t, err)
	require.Empty(t, list)
	_, err = ops.Parked(t.Context(), "cards", 0)
	require.ErrorContains(t, err, "0 is not a positive number")

	// One by its number, with what it contains, also if it waits behind another one.
	pgtest.Execute(t, pool, `UPDATE outbox.inbox_messages SET body = '{"n": 1}', envelope = '{"attributes": {"type": "users.welcomed"}}' WHERE error = 'no such tenant 2'`)
	d, ok, err := ops.ParkedMessage(t.Context(), "cards", first.No)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, first, d.ParkedMessage)
	d, ok, err = ops.ParkedMessage(t.Context(), "cards", first.No+1)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, []any{"no such tenant 2", admin.Count{N: 1}, 1, `{"n": 1}`, "users.welcomed"}, []any{d.Error, d.Behind, d.Version, string(d.Payload), d.Headers["ce_type"]})
	require.True(t, d.NextAttemptAt.IsZero())
	require.WithinDuration(t, time.Now().Add(-time.Hour), d.FailedAt, 10*time.Minute)
	for group, no := range map[string]int64{"other": first.No, "cards": first.No + 3} {
		_, ok, err = ops.ParkedMessage(t.Context(), group, no)
		require.NoError(t, err)
		require.False(t, ok, "of another group, and dead")
	}
	groups, err := ops.ConsumerGroups(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"cards", "many", "other"}, groups)
	schemas, err := ops.Schemas(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"outbox"}, schemas)
}
