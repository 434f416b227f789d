package consume_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/publish"
)

func TestMain(m *testing.M) {
	connect = pgtest.ExampleDatabase
	runtimetest.Main(m)
}

// projection is a consumer that inserts a row per event.
type projection struct {
	fail func(ctx context.Context, tx pgx.Tx) error // runs after the insert; nil succeeds
}

func (p *projection) ConsumeUserCreated(ctx context.Context, tx pgx.Tx, e consume.Delivery[created]) error {
	if _, err := tx.Exec(ctx, "INSERT INTO effects (event, name) VALUES ($1, $2)", e.ID, e.Payload.Name); err != nil {
		return err
	}
	if p.fail != nil {
		return p.fail(ctx, tx)
	}
	return nil
}

func newConsumer(t testing.TB, p *projection, stale inbox.Stale) *consume.Consumer {
	t.Helper()
	ib, err := inbox.New(inbox.Config{Group: "billing", Stale: stale})
	require.NoError(t, err)
	c, err := consume.New(ib, consume.Handle(createdTopic, p, (*projection).ConsumeUserCreated))
	require.NoError(t, err)
	return c
}

// database returns a migrated database with a table of effects, which has no unique constraint.
func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Database(t)
	_, err := pool.Exec(t.Context(), "CREATE TABLE effects (event uuid NOT NULL, name text NOT NULL)")
	require.NoError(t, err)
	return pool
}

// message is an event about a user. It has an entity version unless that is 0.
func message(t testing.TB, id uuid.UUID, version int64) consume.Message {
	t.Helper()
	o := outgoing()
	o.ID, o.Entity.Version, o.Payload = id, version, json.RawMessage(goodPayload)
	m, err := encoders["binary"].Encode(o)
	require.NoError(t, err)
	return consume.Message(m)
}

func count(t testing.TB, pool *pgxpool.Pool, table string) int {
	t.Helper()
	var n int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM "+table).Scan(&n))
	return n
}

func TestConsumeOnce(t *testing.T) {
	t.Parallel()
	pool := database(t)
	c := newConsumer(t, &projection{}, "")
	m := message(t, uuid.New(), 0)
	for _, want := range []inbox.Outcome{inbox.Applied, inbox.Duplicate, inbox.Duplicate} {
		outcome, err := c.Consume(t.Context(), pool, m)
		require.NoError(t, err)
		require.Equal(t, want, outcome)
	}
	require.Equal(t, 1, count(t, pool, "effects"))
	require.Equal(t, 0, count(t, pool, "outbox.entity_versions"))
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	outcome, err := c.Consume(t.Context(), conn.Conn(), message(t, uuid.New(), 0))
	require.NoError(t, err, "a connection works as well")
	require.Equal(t, inbox.Applied, outcome)
}

// TestConsumeByDedupeKey: what two producers report with one key, each as an event of its own, is applied once.
func TestConsumeByDedupeKey(t *testing.T) {
	t.Parallel()
	pool := database(t)
	ib, err := inbox.New(inbox.Config{Group: "billing", Identity: inbox.ByDedupeKey})
	require.NoError(t, err)
	c, err := consume.New(ib, consume.Handle(createdTopic, &projection{}, (*projection).ConsumeUserCreated))
	require.NoError(t, err)
	for i, key := range []string{"4711", "4711", "4712"} {
		for _, version := range []int64{0, 3} {
			o := outgoing()
			o.ID, o.DedupeKey, o.TenantID, o.Entity.Version = uuid.New(), fmt.Sprint(key, "/", version), uuid.NullUUID{}, version
			o.Entity.ID, o.Payload = key, json.RawMessage(goodPayload)
			m, err := encoders["binary"].Encode(o)
			require.NoError(t, err)
			outcome, err := c.Consume(t.Context(), pool, consume.Message(m))
			require.NoError(t, err)
			require.Equal(t, i == 1, outcome == inbox.Duplicate, "%s, version %d: %s", key, version, outcome)
		}
	}
	require.Equal(t, 4, count(t, pool, "effects"))
}

// TestVersionsBelongToASourceAndATenant: an entity of another service or tenant with the same name has its own versions.
// Without a source the namespace is the source, as in CloudEvents.
func TestVersionsBelongToASourceAndATenant(t *testing.T) {
	t.Parallel()
	pool := database(t)
	c := newConsumer(t, &projection{}, inbox.Skip)
	consumed := func(encoder publish.Encoder, tenant uuid.NullUUID, version int64) inbox.Outcome {
		o := outgoing()
		o.ID, o.TenantID, o.Entity.Version, o.Payload = uuid.New(), tenant, version, json.RawMessage(goodPayload)
		m, err := encoder.Encode(o)
		require.NoError(t, err)
		outcome, err := c.Consume(t.Context(), pool, consume.Message(m))
		require.NoError(t, err)
		return outcome
	}
	standard, crm := publish.CloudEvents("", publish.Binary), publish.CloudEvents("https://crm.example.com", publish.Structured)
	one, other := uuid.NullUUID{UUID: uuid.New(), Valid: true}, uuid.NullUUID{UUID: uuid.New(), Valid: true}
	require.Equal(t, inbox.Applied, consumed(standard, one, 5))
	require.Equal(t, inbox.Applied, consumed(standard, other, 1))
	require.Equal(t, inbox.Applied, consumed(standard, uuid.NullUUID{}, 1))
	require.Equal(t, inbox.Applied, consumed(crm, one, 1))
	require.Equal(t, inbox.Skipped, consumed(standard, one, 4))
	require.Equal(t, inbox.Skipped, consumed(publish.JSON(), one, 4))
}

// TestConsumeEntityVersions: a stale event is skipped, quarantined with its payload, or an error, as configured.
func TestConsumeEntityVersions(t *testing.T) {
	t.Parallel()
	for stale, want := range map[inbox.Stale]inbox.Outcome{inbox.Skip: inbox.Skipped, inbox.Quarantine: inbox.Quarantined, inbox.Error: ""} {
		t.Run(string(stale), func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			c := newConsumer(t, &projection{}, stale)
			newer := message(t, uuid.New(), 7)
			outcome, err := c.Consume(t.Context(), pool, newer)
			require.NoError(t, err)
			require.Equal(t, inbox.Applied, outcome)
			outcome, err = c.Consume(t.Context(), pool, newer)
			require.NoError(t, err)
			require.Equal(t, inbox.Duplicate, outcome)
			outcome, err = c.Consume(t.Context(), pool, message(t, eventID, 6))
			require.Equal(t, want, outcome)
			if stale == inbox.Error {
				require.ErrorIs(t, err, inbox.ErrStale)
				require.ErrorContains(t, err, "consume users/user_created version 2, event "+eventID.String()+": ")
				require.True(t, consume.IsPermanent(err))
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, 1, count(t, pool, "effects"))
			if stale == inbox.Quarantine {
				var quarantined []byte
				require.NoError(t, pool.QueryRow(t.Context(), "SELECT payload FROM outbox.inbox_quarantined").Scan(&quarantined))
				require.Equal(t, goodPayload, string(quarantined))
			}
		})
	}
}

// sends returns a method that sends SQL on the connection of its transaction, and ignores the errors of what begins with "-".
func sends(statements ...string) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		for _, sql := range statements {
			sql, ignored := strings.CutPrefix(sql, "-")
			if _, err := tx.Exec(ctx, sql); err != nil && !ignored {
				return err
			}
		}
		return nil
	}
}

// sendsBatch is sends in one batch, whose error it ignores.
func sendsBatch(statements ...string) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		var b pgx.Batch
		for _, sql := range statements {
			b.Queue(sql)
		}
		_ = tx.SendBatch(ctx, &b).Close()
		return nil
	}
}

// TestConsumeFailure: an effect that fails, panics or aborts its transaction writes nothing, and the message can be
// consumed again.
func TestConsumeFailure(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		fail      func(context.Context, pgx.Tx) error
		want      string
		permanent bool
	}{
		"error":     {func(context.Context, pgx.Tx) error { return broken }, ": broken", false},
		"permanent": {func(context.Context, pgx.Tx) error { return consume.Permanent(broken) }, ": broken", true},
		"panic":     {func(context.Context, pgx.Tx) error { panic("S3CRET") }, ": consumer panicked (string)\n", false},
		"sql": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT 1/0")
			return err
		}, "division by zero", false},
		"hidden sql": {func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, "SELECT 1/0") // the transaction is aborted, and the method hides it
			return nil
		}, "consumer returned nil, but left its transaction failed: ERROR: division by zero", false},
		"Goexit": {func(context.Context, pgx.Tx) error {
			runtime.Goexit()
			return nil
		}, ": consumer called runtime.Goexit\n", false},
		"commit":           {func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }, ": " + consume.ErrTxOwned.Error(), false},
		"rollback":         {func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) }, ": " + consume.ErrTxOwned.Error(), false},
		"COMMIT":           {sends("COMMIT"), ": sent COMMIT: " + consume.ErrTxOwned.Error(), false},
		"hidden COMMIT":    {sends("- Commit ;"), ": consumer sent COMMIT: " + consume.ErrTxOwned.Error(), false},
		"END":              {sends("-END"), ": consumer sent END: ", false},
		"ROLLBACK":         {sends("-rollback work"), ": consumer sent ROLLBACK: ", false},
		"PREPARE":          {sends("-PREPARE TRANSACTION 'x'"), ": consumer sent PREPARE TRANSACTION: ", false},
		"in a batch":       {sendsBatch("SELECT 1", "COMMIT"), ": consumer sent COMMIT: ", false},
		"behind another":   {sends("SELECT 1; COMMIT"), "its method must not commit it", false},
		"both ignored":     {sends("-SELECT 1; COMMIT"), "consumer ended its transaction: " + consume.ErrTxOwned.Error(), false},
		"and then SQL":     {sends("-SELECT 1; COMMIT", "INSERT INTO effects VALUES (1)"), "the transaction has ended", false},
		"another one":      {sends("-SELECT 1; COMMIT", "-BEGIN"), "consumer ended its transaction", false},
		"another, chained": {sends("SELECT 1; ROLLBACK AND CHAIN"), "consumer ended its transaction and began another one: " + consume.ErrTxOwned.Error(), false},
		"prepared":         {sends("SELECT 1; PREPARE TRANSACTION 'x'"), "its method must not commit it", false},
		"constraints":      {sends("-SET CONSTRAINTS ALL IMMEDIATE"), "left its transaction failed: ERROR: the consumer owns", false},
		"open rows": {func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Query(ctx, "SELECT generate_series(1, 9)")
			return nil
		}, "left rows or a batch of its transaction open", false},
		"context": {func(ctx context.Context, _ pgx.Tx) error { return context.Canceled }, "context canceled", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := database(t)
			p := &projection{fail: test.fail}
			c := newConsumer(t, p, "")
			for _, version := range []int64{0, 3} {
				m := message(t, eventID, version)
				outcome, err := c.Consume(t.Context(), pool, m)
				require.Empty(t, outcome)
				require.ErrorContains(t, err, "consume users/user_created version 2, event "+eventID.String()+": ")
				require.ErrorContains(t, err, test.want)
				require.NotContains(t, err.Error(), "S3CRET")
				require.Equal(t, test.permanent, consume.IsPermanent(err))
				require.Zero(t, count(t, pool, "effects"))
				require.Zero(t, count(t, pool, "outbox.processed_events"))
				require.Zero(t, count(t, pool, "outbox.entity_versions"))
			}
			p.fail = nil
			outcome, err := c.Consume(t.Context(), pool, message(t, eventID, 3))
			require.NoError(t, err)
			require.Equal(t, inbox.Applied, outcome)
		})
	}
}

// TestConsumeRollsBackWhenItsContextEnds: the connection does not stay in a transaction.
func TestConsumeRollsBackWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	pool := database(t)
	ctx, cancel := context.WithCancel(t.Context())
	c := newConsumer(t, &projection{fail: func(context.Context, pgx.Tx) error { cancel(); return nil }}, "")
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = c.Consume(ctx, conn.Conn(), message(t, eventID, 0))
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, consume.IsPermanent(err))
	require.False(t, conn.Conn().IsClosed())
	require.Equal(t, byte('I'), conn.Conn().PgConn().TxStatus())
	require.Zero(t, count(t, pool, "effects"))
}

func TestConsumeTx(t *testing.T) {
	t.Parallel()
	pool := database(t)
	c := newConsumer(t, &projection{}, "")
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = c.ConsumeTx(t.Context(), tx, consume.Message{})
	require.ErrorIs(t, err, consume.ErrMalformed, "tx is unchanged")
	outcome, err := c.ConsumeTx(t.Context(), tx, message(t, eventID, 0))
	require.NoError(t, err)
	require.Equal(t, inbox.Applied, outcome)
	outcome, err = c.ConsumeTx(t.Context(), tx, message(t, eventID, 0))
	require.NoError(t, err)
	require.Equal(t, inbox.Duplicate, outcome)
	require.Zero(t, count(t, pool, "effects"), "the caller commits")
	require.NoError(t, tx.Rollback(t.Context()))
	require.Zero(t, count(t, pool, "outbox.processed_events"))

	failing := newConsumer(t, &projection{fail: func(context.Context, pgx.Tx) error { return errors.New("broken") }}, "")
	tx, err = pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = failing.ConsumeTx(t.Context(), tx, message(t, eventID, 0))
	require.ErrorContains(t, err, "event "+eventID.String()+": broken")
	require.NoError(t, tx.Rollback(t.Context()))
}

// TestConsumeConcurrently: many concurrent deliveries of the same events apply each event once, whatever the role's default
// isolation level is.
func TestConsumeConcurrently(t *testing.T) {
	t.Parallel()
	pool := database(t)
	strict := pgtest.Strict(t, pool)
	c := newConsumer(t, &projection{}, "")
	const events, deliveries = 20, 4
	var applied sync.Map
	var wg sync.WaitGroup
	for i := range events {
		m := message(t, uuid.New(), 0)
		for range deliveries {
			wg.Go(func() {
				outcome, err := c.Consume(t.Context(), strict, m)
				if err != nil {
					t.Error(err)
				}
				if outcome == inbox.Applied {
					if _, twice := applied.LoadOrStore(i, true); twice {
						t.Error("an event was applied twice")
					}
				}
			})
		}
	}
	wg.Wait()
	require.Equal(t, events, count(t, pool, "effects"))
}

// TestConsumeBadInput: a fault of a message is found before the database is used.
func TestConsumeBadInput(t *testing.T) {
	t.Parallel()
	c := newConsumer(t, &projection{}, "")
	change := func(attribute, value string) consume.Message {
		m := message(t, eventID, 1)
		m.Attributes[attribute] = value
		return m
	}
	invalid, long := message(t, eventID, 1), message(t, eventID, 1)
	invalid.Body = with(t, map[string]string{"name": "5"})
	long.Body = with(t, map[string]string{"name": `"far too long a name"`})
	foreign := change("type", "com.github.push")
	foreign.Attributes["id"] = "5"
	_, err := c.Consume(t.Context(), nil, foreign)
	require.EqualError(t, err, "consume com.github.push: unknown topic", "its id is the business of others")
	for want, m := range map[error]consume.Message{
		consume.ErrMalformed:      {Body: []byte("{}")},
		consume.ErrUnknownTopic:   change("type", "users.user_deleted"),
		consume.ErrUnknownVersion: change("dataversion", "3"),
		consume.ErrInvalidPayload: invalid,
	} {
		outcome, err := c.Consume(t.Context(), nil, m)
		require.Empty(t, outcome)
		require.ErrorIs(t, err, want)
		require.True(t, consume.IsPermanent(err))
	}
	_, err = c.Strict().Consume(t.Context(), nil, long)
	require.ErrorIs(t, err, consume.ErrInvalidPayload, "a strict consumer checks bounds")
	require.True(t, consume.IsPermanent(err))
	_, err = c.Consume(t.Context(), unreachable{}, long)
	require.ErrorContains(t, err, "begin transaction: nobody answers", "c itself is not strict")
	require.False(t, consume.IsPermanent(err))
}

type unreachable struct{}

func (unreachable) Begin(context.Context) (pgx.Tx, error) { return nil, errors.New("nobody answers") }

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	ib, err := inbox.New(inbox.Config{Group: "billing"})
	require.NoError(t, err)
	h := consume.Handle(createdTopic, &projection{}, (*projection).ConsumeUserCreated)
	_, err = consume.New(nil, h)
	require.EqualError(t, err, "new consumer: no inbox given (nil)")
	_, err = consume.New(ib, h, h)
	require.EqualError(t, err, "new consumer: topic users/user_created has two handlers: pass one")
	type consumer interface {
		ConsumeUserCreated(context.Context, pgx.Tx, consume.Delivery[created]) error
	}
	_, err = consume.New(ib, consume.Handle(createdTopic, consumer(nil), consumer.ConsumeUserCreated))
	require.EqualError(t, err, "new consumer: topic users/user_created: no consumer given (nil)")
}

// TestConsumeWireName: messages are recognized by the wire name of their topic, by former ones, and by namespace.topic, from
// before the topic had one. The event has the names of the YAML, so that its entity stays the same in the inbox.
func TestConsumeWireName(t *testing.T) {
	t.Parallel()
	topic := consume.NewTopic[created](consume.TopicSpec{
		Namespace: "users", Name: "user_created", Version: 2, RenamedFrom: []string{"user_made"},
		WireName: "user:created", FormerWireNames: []string{"accounts.created", "user:created"},
	})
	ib, err := inbox.New(inbox.Config{Group: "billing"})
	require.NoError(t, err)
	p := &projection{}
	c, err := consume.New(ib, consume.Handle(topic, p, (*projection).ConsumeUserCreated))
	require.NoError(t, err)
	for kind, name := range map[string]string{
		"user:created": "user_created", "accounts.created": "user_created", "users.user_created": "user_created", "users.user_made": "user_made",
	} {
		m := message(t, uuid.New(), 1)
		m.Attributes["type"] = kind
		_, err := c.Consume(t.Context(), unreachable{}, m)
		require.ErrorContains(t, err, "consume users/"+name+" version 2, event ", kind)
		require.ErrorContains(t, err, "nobody answers", kind)
		r, err := consume.Parse(m)
		require.NoError(t, err)
		require.Equal(t, kind, r.Type)
		d, err := topic.Decode(r)
		require.NoError(t, err)
		require.Equal(t, []string{kind, "users", name}, []string{d.Type, d.Namespace, d.Topic})
	}
	m := message(t, uuid.New(), 1)
	m.Attributes["type"] = "user.created"
	_, err = c.Consume(t.Context(), nil, m)
	require.ErrorIs(t, err, consume.ErrUnknownTopic)
	r, err := consume.Parse(m)
	require.NoError(t, err)
	_, err = topic.Decode(r)
	require.ErrorIs(t, err, consume.ErrUnknownTopic)

	other := consume.NewTopic[created](consume.TopicSpec{Namespace: "users", Name: "user_deleted", WireName: "accounts.created"})
	_, err = consume.New(ib, consume.Handle(topic, p, (*projection).ConsumeUserCreated), consume.Handle(other, p, (*projection).ConsumeUserCreated))
	require.EqualError(t, err, "new consumer: topics users/user_created and users/user_deleted have messages of one type, accounts.created: give one of them another wire name")
}

// TestLogValue: the log of a delivery identifies the event and shows nothing of its payload.
func TestLogValue(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	log := slog.New(slog.NewTextHandler(&b, nil))
	r := received()
	log.Info("seen", "received", r, "delivery", consume.Delivery[created]{Event: r.Event})
	require.Contains(t, b.String(), "delivery.event_id="+eventID.String()+" delivery.tenant_id="+tenantID.String())
	require.NotContains(t, b.String(), "Zo")
	require.NotContains(t, b.String(), "marriage")
}

func TestNilArgumentsAreErrors(t *testing.T) {
	t.Parallel()
	c := newConsumer(t, &projection{}, "")
	m := message(t, eventID, 1)
	var err error
	require.NotPanics(t, func() { _, err = c.Consume(t.Context(), (*pgxpool.Pool)(nil), m) })
	require.ErrorContains(t, err, "no pool or connection given (nil)")
	require.NotPanics(t, func() { _, err = c.ConsumeTx(t.Context(), nil, m) })
	require.ErrorContains(t, err, "no transaction given (nil)")
}

// A consumer takes the events of its topic's earlier names.
func TestConsumeRenamedTopic(t *testing.T) {
	t.Parallel()
	pool := database(t)
	topic := consume.NewTopic[created](consume.TopicSpec{Namespace: "users", Name: "user_registered", RenamedFrom: []string{"user_created"}, Version: 2})
	ib, err := inbox.New(inbox.Config{Group: "billing"})
	require.NoError(t, err)
	p := &projection{}
	c, err := consume.New(ib, consume.Handle(topic, p, (*projection).ConsumeUserCreated))
	require.NoError(t, err)
	outcome, err := c.Consume(t.Context(), pool, message(t, uuid.New(), 0))
	require.NoError(t, err)
	require.Equal(t, inbox.Applied, outcome)
	require.Equal(t, 1, count(t, pool, "effects"))
	_, err = consume.New(ib, consume.Handle(topic, p, (*projection).ConsumeUserCreated), consume.Handle(createdTopic, p, (*projection).ConsumeUserCreated))
	require.ErrorContains(t, err, "topic users/user_created has two handlers")
}
