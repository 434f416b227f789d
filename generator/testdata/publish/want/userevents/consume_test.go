package userevents_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	events "github.com/outboxgen/outboxgen/generator/testdata/publish/want"
	"github.com/outboxgen/outboxgen/generator/testdata/publish/want/userevents"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/payload"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// broker keeps what is published to it.
type broker struct {
	mu   sync.Mutex
	sent []publish.Outgoing
}

func (b *broker) Publish(_ context.Context, batch []publish.Outgoing) []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent = append(b.sent, batch...)
	return make([]error, len(batch))
}

// cards is a projection of another service.
type cards struct{}

func (cards) ConsumeUserCreated(ctx context.Context, tx pgx.Tx, e consume.Delivery[userevents.UserCreated]) error {
	_, err := tx.Exec(ctx, "INSERT INTO cards (user_id, name, since) VALUES ($1, $2, $3)", e.Payload.UserID, e.Payload.Name, e.Payload.Contact.Since.String())
	return err
}

func (cards) ConsumeLoginFailed(ctx context.Context, tx pgx.Tx, e consume.Delivery[userevents.LoginFailed]) error {
	_, err := tx.Exec(ctx, "UPDATE cards SET failed = failed + 1 WHERE user_id = $1", e.Payload.UserID)
	return err
}

func created(user uuid.UUID) events.UserCreated {
	return events.UserCreated{
		TenantID: uuid.New(), UserID: user, Revision: 1, Name: "Zoë", Plan: events.PlanPaid,
		Contact: events.Contact{Email: "zoe@example.com", Since: payload.Date{Year: 2026, Month: time.February, Day: 3}},
	}
}

// published enqueues two events, has the generated dispatcher publish them, and returns what the brokers got.
func published(t *testing.T, pool *pgxpool.Pool, user uuid.UUID) []publish.Outgoing {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := events.EnqueueUserCreated(t.Context(), tx, created(user)); err != nil {
			return err
		}
		_, err := events.EnqueueLoginFailed(t.Context(), tx, events.LoginFailed{
			UserID: user, Realm: "web", Count: 2, Limit: 9, Final: true, Plan: events.PlanFree,
		}, outbox.WithHeaders(map[string]string{"kind": "own", "traceparent": "00-a-b-01"}))
		return err
	}))
	kafka, nats := &broker{}, &broker{}
	d, err := events.NewUsersDispatcher(pool, events.UnimplementedUsersHandlers{}, queue.Config{
		Publishers: map[string]publish.Publisher{"kafka": kafka, "nats": nats},
	})
	require.NoError(t, err)
	report := outboxtest.Drain(t, d)
	require.Equal(t, 2, report.Delivered)
	require.Len(t, kafka.sent, 1)
	require.Len(t, nats.sent, 1)
	return append(kafka.sent, nats.sent...)
}

// TestPublished: the brokers get the destinations, keys and headers of the YAML.
func TestPublished(t *testing.T) {
	t.Parallel()
	pool, user := outboxtest.Postgres(t), uuid.New()
	sent := published(t, pool, user)
	require.Equal(t, "sc.domain.user", sent[0].Destination)
	require.Equal(t, user.String(), sent[0].Key)
	require.Equal(t, outbox.Entity{Type: "user", ID: user.String(), Version: 1}, sent[0].Entity)
	require.Equal(t, "users.login.failed", sent[1].Destination)
	require.Equal(t, "web/"+user.String(), sent[1].Key)
	require.Equal(t, map[string]string{"kind": "own", "traceparent": "00-a-b-01", "attempt": "2 of 9, true", "realm": "web/free"}, sent[1].Headers)

	_, err := events.NewBillingDispatcher(pool, queue.Config{})
	require.ErrorContains(t, err, "publishes to webhook")
	_, err = events.NewRelayListener(pool, listener.Config{})
	require.ErrorContains(t, err, "publishes to kafka")
}

// service is the consuming service: a separate database and the consumer.
func service(t *testing.T) (*pgxpool.Pool, *consume.Consumer) {
	t.Helper()
	pool := outboxtest.Postgres(t)
	_, err := pool.Exec(t.Context(), "CREATE TABLE cards (user_id uuid, name text, since text, failed int NOT NULL DEFAULT 0)")
	require.NoError(t, err)
	ib, err := inbox.New(inbox.Config{Group: "cards"})
	require.NoError(t, err)
	c, err := userevents.NewUsersConsumer(ib, cards{})
	require.NoError(t, err)
	return pool, c
}

// TestFromEnqueueToProjection follows events from enqueue to projection, in each encoding, with each message delivered
// twice.
func TestFromEnqueueToProjection(t *testing.T) {
	t.Parallel()
	user := uuid.New()
	sent := published(t, outboxtest.Postgres(t), user)
	for name, encode := range map[string]publish.Encoder{
		"binary": publish.CloudEvents("/accounts", publish.Binary), "structured": publish.CloudEvents("/accounts", publish.Structured), "json": publish.JSON(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, c := service(t)
			for _, want := range []inbox.Outcome{inbox.Applied, inbox.Duplicate} {
				for _, o := range sent {
					m, err := encode.Encode(o)
					require.NoError(t, err)
					outcome, err := c.Consume(t.Context(), pool, consume.Message(m))
					require.NoError(t, err)
					require.Equal(t, want, outcome)
				}
			}
			var card string
			require.NoError(t, pool.QueryRow(t.Context(), "SELECT string_agg(user_id || ' ' || name || ' ' || since || ' ' || failed, ',') FROM cards").Scan(&card))
			require.Equal(t, user.String()+" Zoë 2026-02-03 1", card)
		})
	}
}

// TestBadInput: each fault has its error, which names the event and the field, and nothing is recorded.
func TestBadInput(t *testing.T) {
	t.Parallel()
	pool, c := service(t)
	event := uuid.New()
	body, err := json.Marshal(created(uuid.New()))
	require.NoError(t, err)
	message := func(topic string, version int, change map[string]any) consume.Message {
		var members map[string]any
		require.NoError(t, json.Unmarshal(body, &members))
		for name, value := range change {
			members[name] = value
		}
		changed, err := json.Marshal(members)
		require.NoError(t, err)
		m, err := publish.JSON()(publish.Outgoing{Event: outbox.Event{ID: event, Namespace: "users", Topic: topic, Version: version}, Payload: changed})
		require.NoError(t, err)
		return consume.Message(m)
	}
	for _, test := range []struct {
		message consume.Message
		want    error
		field   string
	}{
		{message("user_erased", 1, nil), consume.ErrUnknownTopic, ""},
		{message("welcome_due", 1, nil), consume.ErrUnknownTopic, ""}, // not published
		{message("user_created", 3, nil), consume.ErrUnknownVersion, ""},
		{message("user_created", 2, map[string]any{"user_id": "S3CRET"}), consume.ErrInvalidPayload, "user_id"},
		{message("user_created", 2, map[string]any{"contact": map[string]any{"email": "S3CRET"}}), consume.ErrInvalidPayload, "contact.since"},
		{consume.Message{Headers: map[string]string{"outbox-type": "users.user_created"}, Body: body}, consume.ErrMalformed, "outbox-id"},
	} {
		_, err := c.Consume(t.Context(), pool, test.message)
		require.ErrorIs(t, err, test.want)
		require.True(t, consume.IsPermanent(err))
		require.NotContains(t, err.Error(), "S3CRET")
		var facts *consume.Error
		require.ErrorAs(t, err, &facts)
		require.Equal(t, test.field, facts.Field)
		if test.want != consume.ErrMalformed {
			require.Equal(t, event, facts.EventID)
		}
	}
	_, err = c.Consume(t.Context(), pool, message("user_created", 1, nil))
	require.NoError(t, err, "an older version")

	ib, err := inbox.New(inbox.Config{Group: "nobody"})
	require.NoError(t, err)
	nobody, err := userevents.NewUsersConsumer(ib, userevents.UnimplementedUsersConsumer{})
	require.NoError(t, err)
	_, err = nobody.Consume(t.Context(), pool, message("user_created", 2, nil))
	require.ErrorIs(t, err, consume.ErrUnimplemented)
	var recorded int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM outbox.processed_events").Scan(&recorded))
	require.Equal(t, 1, recorded)
}

// planned keeps the plan of a user.
type planned struct {
	userevents.UnimplementedUsersConsumer
	plan userevents.Plan
}

func (p *planned) ConsumeUserCreated(_ context.Context, _ pgx.Tx, e consume.Delivery[userevents.UserCreated]) error {
	p.plan = e.Payload.Plan
	return nil
}

// TestWhatANewerProducerSends: a consumer accepts an unknown value of an enum, and values that are out of bounds. A strict
// consumer refuses both.
func TestWhatANewerProducerSends(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	ib, err := inbox.New(inbox.Config{Group: "plans"})
	require.NoError(t, err)
	for _, change := range []func(p *events.UserCreated){
		func(p *events.UserCreated) { p.Plan = "enterprise" },
		func(p *events.UserCreated) { p.Plan, p.Name = "enterprise", strings.Repeat("x", 100) },
	} {
		p := created(uuid.New())
		change(&p)
		body, err := json.Marshal(p)
		require.NoError(t, err)
		m, err := publish.JSON()(publish.Outgoing{Event: outbox.Event{ID: uuid.New(), Namespace: "users", Topic: "user_created", Version: 2}, Payload: body})
		require.NoError(t, err)
		got := &planned{}
		c, err := userevents.NewUsersConsumer(ib, got)
		require.NoError(t, err)
		_, err = c.Strict().Consume(t.Context(), pool, consume.Message(m))
		require.ErrorIs(t, err, consume.ErrInvalidPayload)
		require.Empty(t, got.plan)
		outcome, err := c.Consume(t.Context(), pool, consume.Message(m))
		require.NoError(t, err)
		require.Equal(t, inbox.Applied, outcome)
		require.Equal(t, userevents.Plan("enterprise"), got.plan)
		require.False(t, got.plan.Known())
		require.True(t, userevents.PlanPaid.Known())
	}
	require.Equal(t, []userevents.Plan{userevents.PlanFree, userevents.PlanPaid}, userevents.PlanValues())
	_, err = userevents.ParsePlan("enterprise")
	require.EqualError(t, err, "validate plan: the value is not one of free, paid")
	plan, err := userevents.ParsePlan("paid")
	require.NoError(t, err)
	require.Equal(t, userevents.PlanPaid, plan)
}

// TestSameRules: the payloads of both packages have the same JSON and the same rules.
func TestSameRules(t *testing.T) {
	t.Parallel()
	p := created(uuid.New())
	body, err := json.Marshal(p)
	require.NoError(t, err)
	var q userevents.UserCreated
	require.NoError(t, json.Unmarshal(body, &q))
	again, err := json.Marshal(q)
	require.NoError(t, err)
	require.Equal(t, string(body), string(again))
	require.NoError(t, q.Validate())
	p.Name, q.Name = " ", " "
	p.Plan, q.Plan = "x", "x"
	var broken *payload.ValidationError
	require.ErrorAs(t, q.Validate(), &broken)
	require.Equal(t, p.Validate(), q.Validate())
	require.NotContains(t, q.Contact.LogValue().String(), "example.com")
}
