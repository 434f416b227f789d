package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxfake"
	"github.com/outboxgen/outboxgen/payload"
	"github.com/outboxgen/outboxgen/seal"
)

// secretive is a payload with sealed fields. Its key is not one of them.
type secretive struct {
	ID    string  `json:"id"`
	Email string  `json:"email" outbox:"sealed"`
	Age   int32   `json:"age" outbox:"sealed"`
	Note  *string `json:"note,omitempty" outbox:"sealed"`
}

func (s secretive) Validate() error {
	var c payload.Checks
	c.MaxLen("email", s.Email, 40)
	return c.Err("test/secretive")
}

func secretiveTopic(sealed outbox.Sealed, log bool) outbox.Topic[secretive] {
	return outbox.NewTopic[secretive](outbox.TopicSpec{
		Namespace: "test", Name: "secretive", Log: log, Sealed: sealed,
		Keys: func(p any) outbox.Keys {
			return outbox.Keys{Dedupe: eventkey.NewKey(eventkey.StringPart("id", p.(*secretive).ID))}
		},
	})
}

// failing is a keyring that fails.
type failing struct{ err error }

func (f failing) SealingKey(context.Context, uuid.NullUUID) (*seal.Key, error) {
	if f.err == nil {
		panic("canary")
	}
	return nil, f.err
}

func (f failing) OpeningKey(context.Context, uuid.NullUUID, string) (*seal.Key, error) {
	return nil, f.err
}

// TestEnqueueSeals: each way to enqueue stores the sealed form, and no other.
func TestEnqueueSeals(t *testing.T) {
	t.Parallel()
	p := secretive{ID: "a", Email: "canary@example.com", Age: 42}
	ctx := seal.ContextWithKeyring(t.Context(), seal.ForTests())
	for _, log := range []bool{false, true} {
		for name, sealed := range map[string]outbox.Sealed{"fields": outbox.SealedFields(), "whole": outbox.SealedPayload()} {
			pool := pgtest.Plain(t)
			topic := secretiveTopic(sealed, log)
			require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				_, err := topic.Enqueue(ctx, tx, p)
				require.NoError(t, err)
				again, err := topic.Enqueue(ctx, tx, p)
				require.NoError(t, err)
				require.True(t, again.Duplicate)
				_, err = topic.EnqueueMany(t.Context(), tx, []secretive{{ID: "b", Email: p.Email}, {ID: "c", Email: p.Email}}, outbox.WithKeyring(seal.ForTests()))
				require.NoError(t, err)
				b := &pgx.Batch{}
				_, err = topic.EnqueueInBatch(b, secretive{ID: "d", Email: p.Email}, outbox.WithKeyring(seal.ForTests()))
				require.NoError(t, err)
				return tx.SendBatch(t.Context(), b).Close()
			}))
			table := map[bool]string{false: "outbox.events", true: "outbox.log"}[log]
			rows := pgtest.Value[[]string](t, pool, "SELECT array_agg(payload::text) FROM "+table)
			require.Len(t, rows, 4)
			for _, row := range rows {
				require.NotContains(t, row, "canary")
				if name == "whole" {
					require.Regexp(t, `^\{"\$sealed": "sealed:v1:for-tests-only:[A-Za-z0-9_-]+"\}$`, row)
				} else {
					require.Regexp(t, `^\{"id": ".", "age": "sealed:v1:for-tests-only:[A-Za-z0-9_-]+", "email": "sealed:v1:for-tests-only:[A-Za-z0-9_-]+"\}$`, row)
				}
			}
		}
	}
}

// TestEnqueueSealedErrors: what is wrong with keys is an error before anything is sent, the transaction stays usable, and
// no text has the value.
func TestEnqueueSealedErrors(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	topic := secretiveTopic(outbox.SealedFields(), false)
	p := secretive{ID: "a", Email: "canary@example.com"}
	large := json.RawMessage(`"canary` + strings.Repeat("x", outbox.MaxPayloadBytes*4/5) + `"`)
	type raw struct {
		Raw json.RawMessage `json:"raw" outbox:"sealed"`
	}
	type wrapped struct{ secretive }
	type wrong struct {
		W wrapped `json:"w"`
	}
	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	with := func(k seal.Keyring) context.Context { return seal.ContextWithKeyring(t.Context(), k) }
	spec := outbox.TopicSpec{Namespace: "test", Name: "raw", Sealed: outbox.SealedFields()}
	for want, enqueue := range map[string]func() error{
		"enqueue test/secretive: the topic has sealed parts, and there is no keyring: use a context of seal.ContextWithKeyring, or the option outbox.WithKeyring": func() error {
			_, err := topic.Enqueue(t.Context(), tx, p)
			return err
		},
		"enqueue test/secretive: event 1 of 1: the topic has sealed parts, and there is no keyring: use a context of seal.ContextWithKeyring, or the option outbox.WithKeyring": func() error {
			_, err := topic.EnqueueMany(t.Context(), tx, []secretive{p})
			return err
		},
		"enqueue test/secretive: seal payload: get the key: no answer": func() error {
			_, err := topic.Enqueue(with(failing{errors.New("no answer")}), tx, p)
			return err
		},
		"enqueue test/secretive: the keyring panicked": func() error {
			b := &pgx.Batch{}
			_, err := topic.EnqueueInBatch(b, p, outbox.WithKeyring(failing{}))
			require.Zero(t, b.Len())
			return err
		},
		"enqueue test/raw: sealed payload has ": func() error {
			_, err := outbox.NewTopic[raw](spec).Untyped().Enqueue(with(seal.ForTests()), tx, raw{large})
			return err
		},
		"enqueue test/raw: field secretive of outbox_test.wrapped is embedded and has sealed fields: give it a name of its own": func() error {
			_, err := outbox.NewTopic[wrong](spec).Untyped().Enqueue(with(seal.ForTests()), tx, wrong{})
			return err
		},
		"enqueue test/secretive: field Email is to be sealed by its struct tag: set TopicSpec.Sealed to outbox.SealedFields()": func() error {
			_, err := outbox.NewTopic[secretive](outbox.TopicSpec{Namespace: "test", Name: "secretive"}).Untyped().Enqueue(with(seal.ForTests()), tx, p)
			return err
		},
		"enqueue test/secretive: ": func() error {
			_, err := topic.Enqueue(with(seal.ForTests()), tx, secretive{ID: "a", Email: "canary" + strings.Repeat("x", 37)})
			return err
		},
	} {
		err := enqueue()
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "canary")
	}
	require.Equal(t, 1, pgtest.Value[int](t, tx, "SELECT 1"), "the transaction is usable")
	require.Zero(t, pgtest.Value[int](t, tx, "SELECT count(*)::int FROM outbox.events"))
}

// TestFakeSeals: a fake seals with a keyring for tests, or with that of the context, and gives back what was enqueued.
func TestFakeSeals(t *testing.T) {
	t.Parallel()
	for _, sealed := range []outbox.Sealed{outbox.SealedFields(), outbox.SealedPayload()} {
		var db outboxfake.DB
		topic := secretiveTopic(sealed, false)
		_, err := db.Enqueue(t.Context(), nil, topic.Untyped(), secretive{ID: "a", Email: "canary"})
		require.NoError(t, err)
		k, err := seal.Parse("mine:" + strings.Repeat("A", 43))
		require.NoError(t, err)
		_, err = db.EnqueueMany(seal.ContextWithKeyring(t.Context(), k), nil, topic.Untyped(), []secretive{{ID: "b", Email: "canary"}})
		require.NoError(t, err)
		require.Equal(t, []secretive{{ID: "a", Email: "canary"}, {ID: "b", Email: "canary"}}, outboxfake.Payloads(&db, topic))
		require.Equal(t, "canary", outboxfake.Events(&db, topic)[1].Payload.Email)
		require.NotContains(t, fmt.Sprintf("%+v", &db), "canary")
		_, err = db.Enqueue(seal.ContextWithKeyring(t.Context(), failing{errors.New("no answer")}), nil, topic.Untyped(), secretive{ID: "c"})
		require.ErrorContains(t, err, "no answer")
	}
}

// BenchmarkBuild makes messages and does not send them.
func BenchmarkBuild(b *testing.B) {
	type open struct {
		ID    string  `json:"id"`
		Email string  `json:"email"`
		Age   int32   `json:"age"`
		Note  *string `json:"note,omitempty"`
	}
	ring := outbox.WithKeyring(seal.ForTests())
	for name, c := range map[string]struct {
		topic   *outbox.UntypedTopic
		payload any
	}{
		"open":           {outbox.NewTopic[open](outbox.TopicSpec{Namespace: "test", Name: "open"}).Untyped(), &open{ID: "a", Email: "anna@example.com", Age: 42}},
		"sealed fields":  {secretiveTopic(outbox.SealedFields(), false).Untyped(), &secretive{ID: "a", Email: "anna@example.com", Age: 42}},
		"sealed payload": {secretiveTopic(outbox.SealedPayload(), false).Untyped(), &secretive{ID: "a", Email: "anna@example.com", Age: 42}},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				batch := &pgx.Batch{}
				if _, err := c.topic.EnqueueInBatch(batch, c.payload, ring); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
