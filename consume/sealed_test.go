package consume_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/payloads/sealing"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/payload"
	"github.com/outboxgen/outboxgen/seal"
)

type joined struct {
	Name  string `json:"name"`
	Email string `json:"email" outbox:"sealed"`
	Age   int64  `json:"age" outbox:"sealed"`
}

type joinedV1 struct {
	Name  string `json:"name"`
	Email string `json:"email" outbox:"sealed"`
}

var (
	joinedStep   = payload.Upcast(1, func(p joinedV1) (joined, error) { return joined{p.Name, p.Email, 42}, nil })
	joinedTopic  = consume.NewTopic[joined](consume.TopicSpec{Namespace: "users", Name: "joined", Version: 2, History: []payload.Upcaster{joinedStep}})
	wholeTopic   = consume.NewTopic[joined](consume.TopicSpec{Namespace: "users", Name: "whole", Version: 2, Sealed: true, History: []payload.Upcaster{joinedStep.Sealed()}})
	anna         = joined{Name: "Anna", Email: "canary@example.com", Age: 42}
	annaOpen     = `{"name":"Anna","email":"canary@example.com","age":42}`
	annaV1       = `{"name":"Anna","email":"canary@example.com"}`
	sealedWithK1 = "k1:" + strings.Repeat("A", 43)
)

type joinedConsumer struct {
	got []joined
	k   seal.Keyring
}

func (c *joinedConsumer) consume(ctx context.Context, _ pgx.Tx, d consume.Delivery[joined]) error {
	c.got, c.k = append(c.got, d.Payload), seal.KeyringFromContext(ctx)
	return nil
}

func parseKeys(t testing.TB, text string) seal.Keyring {
	t.Helper()
	k, err := seal.Parse(text)
	require.NoError(t, err)
	return k
}

// sealedMessage is what a publisher sends of an event that was sealed with k1.
func sealedMessage(t testing.TB, topic string, version int, open string, encoder string) consume.Message {
	t.Helper()
	o := outgoing()
	o.ID, o.Topic, o.Version, o.Entity = uuid.New(), topic, version, outbox.Entity{}
	shape := sealing.Whole
	if topic == "joined" {
		shape = joinedShape(t)
	}
	sealed, err := shape.Seal(t.Context(), parseKeys(t, sealedWithK1), sealing.Event{ID: o.ID, Tenant: o.TenantID}, []byte(open))
	require.NoError(t, err)
	o.Payload = json.RawMessage(sealed)
	m, err := encoders[encoder].Encode(o)
	require.NoError(t, err)
	require.NotContains(t, string(m.Body), "canary")
	return consume.Message(m)
}

// TestConsumeSealed: a consumer opens what was published sealed, in each envelope and of each version. Its methods get
// the keyring. The inbox keeps nothing open.
func TestConsumeSealed(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	ib, err := inbox.New(inbox.Config{Group: "billing"})
	require.NoError(t, err)
	got := &joinedConsumer{}
	c, err := consume.New(ib, consume.Handle(joinedTopic, got, (*joinedConsumer).consume), consume.Handle(wholeTopic, got, (*joinedConsumer).consume))
	require.NoError(t, err)
	k := parseKeys(t, sealedWithK1)
	with := c.WithKeyring(k).Strict()
	for encoder := range encoders {
		for _, topic := range []string{"joined", "whole"} {
			for version, open := range map[int]string{1: annaV1, 2: annaOpen} {
				got.got, got.k = nil, nil
				m := sealedMessage(t, topic, version, open, encoder)
				outcome, err := with.Consume(t.Context(), pool, m)
				require.NoError(t, err, encoder)
				require.Equal(t, inbox.Applied, outcome)
				require.Equal(t, []joined{anna}, got.got)
				require.Equal(t, k, got.k)
				p, err := with.Prepare(t.Context(), sealedMessage(t, topic, version, open, encoder))
				require.NoError(t, err)
				tx := pgtest.Begin(t, pool, pgx.TxOptions{})
				require.NoError(t, p.Apply(t.Context(), tx))
				require.Equal(t, k, got.k)
				require.NoError(t, tx.Rollback(t.Context()))

				r, err := consume.Parse(m)
				require.NoError(t, err)
				of := joinedTopic
				if topic == "whole" {
					of = wholeTopic
				}
				d, err := of.Open(t.Context(), k, r)
				require.NoError(t, err)
				require.Equal(t, anna, d.Payload)
				_, err = of.Decode(r)
				require.ErrorContains(t, err, "it is sealed with key k1: there is no keyring")
				require.False(t, consume.IsPermanent(err))
			}
		}
	}
}

// TestConsumeSealedErrors: a key that is not there is not permanent, and named; what never opens is permanent. No text
// has the value.
func TestConsumeSealedErrors(t *testing.T) {
	t.Parallel()
	ib, err := inbox.New(inbox.Config{Group: "billing"})
	require.NoError(t, err)
	c, err := consume.New(ib, consume.Handle(joinedTopic, &joinedConsumer{}, (*joinedConsumer).consume))
	require.NoError(t, err)
	fine := sealedMessage(t, "joined", 2, annaOpen, "binary")
	moved := sealedMessage(t, "joined", 2, annaOpen, "binary")
	moved.Body = fine.Body
	open := sealedMessage(t, "joined", 2, annaOpen, "binary")
	open.Body = []byte(annaOpen)
	unfit := sealedMessage(t, "joined", 2, `{"name":"Anna","email":"canary","age":"canary"}`, "binary")
	for want, c := range map[string]struct {
		consumer  *consume.Consumer
		message   consume.Message
		permanent bool
		field     string
	}{
		"field email: it is sealed with key k1: there is no keyring":                                              {c, fine, false, "email"},
		"field email: it is sealed with key k1: the keyring has no such key":                                      {c.WithKeyring(parseKeys(t, "k2:"+strings.Repeat("A", 43))), fine, false, "email"},
		"field email: it is sealed with key k1: the key was destroyed":                                            {c.WithKeyring(parseKeys(t, "k1:destroyed")), fine, true, "email"},
		"field email: it does not open with key k1: it was altered, or moved from another event, field or tenant": {c.WithKeyring(parseKeys(t, sealedWithK1)), moved, true, "email"},
		"field email: it is not sealed":                                                                           {c.WithKeyring(parseKeys(t, sealedWithK1)), open, true, "email"},
		"field age does not fit int64":                                                                            {c.WithKeyring(parseKeys(t, sealedWithK1)), unfit, true, "age"},
	} {
		_, err := c.consumer.Prepare(t.Context(), c.message)
		require.ErrorContains(t, err, want)
		require.Equal(t, c.permanent, consume.IsPermanent(err), want)
		require.Equal(t, c.permanent, errors.Is(err, consume.ErrInvalidPayload), want)
		require.NotContains(t, err.Error(), "canary")
		var of *consume.Error
		require.ErrorAs(t, err, &of)
		require.Equal(t, c.field, of.Field)
	}
}

func joinedShape(t testing.TB) *sealing.Shape {
	t.Helper()
	s, err := sealing.Of(reflect.TypeFor[joined]())
	require.NoError(t, err)
	return s
}
