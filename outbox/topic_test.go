package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/payload"
)

// shipped is a payload with all that an enqueue can refuse.
type shipped struct {
	Tenant uuid.UUID       `json:"tenant"`
	Number string          `json:"number"`
	Buyer  string          `json:"buyer"`
	Weight float64         `json:"weight"`
	Extra  json.RawMessage `json:"extra,omitempty"`
	Panic  string          `json:"-"`
}

func (s shipped) Validate() error {
	if s.Panic == "Validate" {
		panic("a hole in the rules")
	}
	var c payload.Checks
	c.MaxLen("buyer", s.Buyer, 600)
	if s.Weight < 0 {
		c.Add(payload.FieldErrors{{Field: "weight", Rule: "min", Message: "is below 0"}})
	}
	return c.Err("test/shipped")
}

func shippedKeys(v any) outbox.Keys {
	p := v.(*shipped)
	if p.Panic == "Keys" {
		panic("a hole in the keys")
	}
	return outbox.Keys{
		TenantID:  outbox.Tenant(p.Tenant),
		Dedupe:    eventkey.NewKey(eventkey.UUIDPart("tenant", p.Tenant), eventkey.StringPart("number", p.Number)),
		Partition: eventkey.NewKey(eventkey.StringPart("buyer", p.Buyer)),
	}
}

// stranger is a tenant that owns no event.
var stranger = uuid.MustParse("6f3c1a4e-0000-4000-8000-00000000000b")

// refusals are the payloads and options that an enqueue refuses, with the text of the error after the topic.
var refusals = []struct {
	name   string
	change func(p *shipped)
	opts   []outbox.EnqueueOption
	is     error
	text   string
}{
	{
		name: "Validate", change: func(p *shipped) { p.Weight = -1 },
		is: outbox.ErrPayloadInvalid, text: "weight is below 0",
	},
	{
		name: "empty part", change: func(p *shipped) { p.Number = "" },
		is: outbox.ErrEmptyKeyPart, text: "render dedupe key: field number: empty key part",
	},
	{
		name: "empty parts of two keys", change: func(p *shipped) { p.Number, p.Buyer = "", "" }, is: outbox.ErrEmptyKeyPart,
		text: "render dedupe key: field number: empty key part; render partition key: field buyer: empty key part",
	},
	{
		name: "zero tenant", change: func(p *shipped) { p.Tenant = uuid.Nil },
		is: outbox.ErrEmptyKeyPart, text: "render dedupe key: field tenant: empty key part",
	},
	{
		name: "tenant that the caller does not expect", opts: []outbox.EnqueueOption{outbox.WithTenant(stranger)},
		is:   outbox.ErrTenantMismatch,
		text: "the payload is not tenant 6f3c1a4e-0000-4000-8000-00000000000b's: tenant mismatch",
	},
	{
		name: "long key", change: func(p *shipped) { p.Number = strings.Repeat("n", 500) },
		is: outbox.ErrKeyTooLong, text: "dedupe key has 537 bytes of at most 512: key too long",
	},
	{
		name: "NUL in a key", change: func(p *shipped) { p.Buyer = "a\x00" },
		is: outbox.ErrPayloadInvalid, text: "partition key holds a NUL or is not UTF-8: invalid payload",
	},
	{
		name: "NaN", change: func(p *shipped) { p.Weight = math.NaN() },
		is: outbox.ErrPayloadInvalid, text: "encode payload: invalid payload: json: unsupported value: NaN",
	},
	{
		name: "half a surrogate pair", change: func(p *shipped) { p.Extra = json.RawMessage(`"\ud800"`) },
		is: outbox.ErrPayloadInvalid, text: "payload holds half a surrogate pair at byte 94: invalid payload",
	},
	{
		name:   "large payload",
		change: func(p *shipped) { p.Extra = json.RawMessage(`"` + strings.Repeat("x", outbox.MaxPayloadBytes) + `"`) },
		is:     outbox.ErrPayloadTooLarge, text: "payload has 1048672 bytes of at most 1048576: payload too large",
	},
	{
		name: "header", opts: []outbox.EnqueueOption{outbox.WithHeaders(map[string]string{"a:b": "c"})},
		is:   outbox.ErrPayloadInvalid,
		text: "header \"a:b\": use a name of 1 to 255 ASCII letters, digits and !#$%&'*+-.^_`|~: invalid payload",
	},
	{name: "nil option", opts: []outbox.EnqueueOption{nil}, text: "option 1 of 1 is nil"},
	{
		name: "panic of Validate", change: func(p *shipped) { p.Panic = "Validate" },
		text: "Validate panicked: a hole in the rules",
	},
	{name: "panic of Keys", change: func(p *shipped) { p.Panic = "Keys" }, text: "Keys panicked: a hole in the keys"},
}

// TestEmptyKeyOfALimit: a field of a limit's template that is empty is refused like that of another key.
func TestEmptyKeyOfALimit(t *testing.T) {
	t.Parallel()
	topic := outbox.NewTopic[shipped](outbox.TopicSpec{
		Namespace: "test", Name: "limited",
		Limits: []outbox.Limit{{Concurrency: 5}, {Per: "{number}", Concurrency: 1}, {Per: "{buyer}", Concurrency: 1}},
		Keys: func(v any) outbox.Keys {
			k, p := shippedKeys(v), v.(*shipped)
			k.Limits = []eventkey.Key{
				eventkey.NewKey(eventkey.StringPart("number", p.Number)), eventkey.NewKey(eventkey.StringPart("buyer", p.Buyer)),
			}
			return k
		},
	})
	for text, p := range map[string]shipped{
		`field number: empty key part`: {Tenant: stranger, Buyer: "b"},
		`render partition key, key of the limit per "{buyer}": field buyer: empty key part`: {Tenant: stranger, Number: "1"},
	} {
		pgtest.InTx(t, pgtest.Database(t), func(tx pgx.Tx) {
			_, err := topic.Enqueue(t.Context(), tx, p)
			require.ErrorIs(t, err, outbox.ErrEmptyKeyPart)
			require.ErrorContains(t, err, text)
		})
	}
}

// TestTopicEnqueues: a Topic writes its events into the queue and into the log, alone, many at once and in a batch. What
// it refuses is refused before anything is sent, with the texts that generated functions have, and leaves the
// transaction usable.
func TestTopicEnqueues(t *testing.T) {
	t.Parallel()
	for table, spec := range shippedSpecs {
		topic := outbox.NewTopic[shipped](spec)
		pool := pgtest.Database(t)
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			var b pgx.Batch
			refused := 0
			for _, r := range refusals {
				good, bad := ship(1), ship(2)
				if r.change != nil {
					r.change(&bad)
				}
				_, one := topic.Enqueue(t.Context(), tx, bad, r.opts...)
				_, inBatch := topic.EnqueueInBatch(&b, bad, r.opts...)
				_, generated := topic.Untyped().Enqueue(t.Context(), tx, &bad, r.opts...)
				_, many := topic.EnqueueMany(t.Context(), tx, []shipped{good, bad}, r.opts...)
				at := 2
				if r.opts != nil {
					at = 1 // the options are those of each
				}
				for _, err := range []error{one, inBatch, generated, many} {
					prefix := "enqueue test/shipped: "
					if err == many {
						prefix += fmt.Sprintf("event %d of 2: ", at)
					}
					require.Error(t, err, r.name)
					first, _, _ := strings.Cut(err.Error(), "\n") // a panic has its stack after it
					require.Equal(t, prefix+r.text, first, r.name)
					if r.is != nil {
						require.ErrorIs(t, err, r.is, r.name)
					}
					refused++
				}
			}
			require.Equal(t, 4*len(refusals), refused)
			require.Zero(t, b.Len())
			require.Zero(t, pgtest.Value[int](t, tx, "SELECT count(*) FROM outbox."+table))

			one, err := topic.Enqueue(t.Context(), tx, ship(1), outbox.WithTenant(runtimetest.TenantA))
			require.NoError(t, err)
			many, err := topic.EnqueueMany(t.Context(), tx, []shipped{ship(1), ship(2), ship(2)})
			require.NoError(t, err)
			second := many[1].ID
			require.Equal(t, []outbox.Receipt{{ID: one.ID, Duplicate: true}, {ID: second}, {ID: second, Duplicate: true}}, many)
			headers := outbox.WithHeaders(map[string]string{"by": "hand"})
			fresh, err := topic.EnqueueInBatch(&b, ship(3), headers)
			require.NoError(t, err)
			taken, err := topic.EnqueueInBatch(&b, ship(1))
			require.NoError(t, err)
			require.NoError(t, tx.SendBatch(t.Context(), &b).Close())
			third, err := fresh.Receipt()
			require.NoError(t, err)
			require.False(t, third.Duplicate)
			again, err := taken.Resolve(t.Context(), tx)
			require.NoError(t, err)
			require.Equal(t, outbox.Receipt{ID: one.ID, Duplicate: true}, again)
			none, err := topic.EnqueueMany(t.Context(), tx, nil)
			require.NoError(t, err)
			require.Empty(t, none)
		})
		require.Equal(t, []string{"b 1 null", "b 2 null", `b 3 {"by": "hand"}`}, pgtest.Value[[]string](t, pool,
			`SELECT array_agg(concat_ws(' ', partition_key, n, coalesce(headers::text, 'null')) ORDER BY n)
			FROM outbox.`+table+`, LATERAL (SELECT payload->>'number' AS n) AS p
			WHERE tenant_id = $1 AND dedupe_key = $1 || '/' || n`, runtimetest.TenantA))
	}
}

// shippedSpecs are topics with the payload shipped, by the table of their events.
var shippedSpecs = map[string]outbox.TopicSpec{
	"events": {Namespace: runtimetest.Namespace, Name: "shipped", Keys: shippedKeys},
	"log":    {Namespace: runtimetest.Namespace, Name: "shipped", Keys: shippedKeys, Log: true},
}

// ship returns a valid payload.
func ship(n int) shipped {
	return shipped{Tenant: runtimetest.TenantA, Number: fmt.Sprint(n), Buyer: "b", Weight: 1}
}

// TestTopicRefusesItsArgumentsAndItsSpec: what is nil, and what is wrong with the topic itself, is an error of each
// method.
func TestTopicRefusesItsArgumentsAndItsSpec(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	later := outbox.WithNotBefore(time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC))
	never := outbox.WithNotBefore(time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC))
	foreign := func(any) outbox.Keys {
		return outbox.Keys{TenantID: outbox.Tenant(runtimetest.TenantA), Dedupe: eventkey.NewKey(eventkey.LiteralPart("x"))}
	}
	noKeys := func(any) outbox.Keys { return outbox.Keys{TenantID: outbox.Tenant(uuid.Nil)} }
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		for want, c := range map[string]struct {
			spec outbox.TopicSpec
			opts []outbox.EnqueueOption
		}{
			"dedupe key does not start with tenant " + runtimetest.TenantA.String() + " and a slash: tenant mismatch": {
				spec: outbox.TopicSpec{Keys: foreign},
			},
			"tenant is the zero UUID: empty key part": {spec: outbox.TopicSpec{Keys: noKeys}},
			`fairness "tenant" needs the tenant of the event, which has none: set TenantID, or use no fairness`: {
				spec: outbox.TopicSpec{Fairness: outbox.FairnessTenant},
			},
			`fairness "tenant": listeners get the events of a log topic in order, so that tenants cannot take turns: ` +
				"use no fairness": {
				spec: outbox.TopicSpec{Fairness: outbox.FairnessTenant, Log: true, Keys: shippedKeys},
			},
			`fairness "turns" is not a valid fairness: use "tenant", or none`: {
				spec: outbox.TopicSpec{Fairness: "turns"},
			},
			"not before: listeners get the events of a log topic in order, so that none can be put off": {
				spec: outbox.TopicSpec{Log: true}, opts: []outbox.EnqueueOption{later},
			},
			"not before: year 12000 is not between 1 and 9999": {opts: []outbox.EnqueueOption{never}},
			"version -1 is not between 1 and 2147483647":       {spec: outbox.TopicSpec{Version: -1}},
			"max attempts -1 is not between 1 and 2147483647": {
				spec: outbox.TopicSpec{Retry: outbox.Retry{MaxAttempts: -1}},
			},
			`schema name "select" is a reserved word of SQL: choose another`: {spec: outbox.TopicSpec{Schema: "select"}},
		} {
			c.spec.Namespace, c.spec.Name = runtimetest.Namespace, "shipped"
			topic := outbox.NewTopic[shipped](c.spec)
			var b pgx.Batch
			_, err := topic.Enqueue(t.Context(), tx, ship(1), c.opts...)
			require.EqualError(t, err, "enqueue test/shipped: "+want)
			_, err = topic.EnqueueMany(t.Context(), tx, []shipped{ship(1)}, c.opts...)
			require.EqualError(t, err, "enqueue test/shipped: event 1 of 1: "+want)
			_, err = topic.EnqueueInBatch(&b, ship(1), c.opts...)
			require.EqualError(t, err, "enqueue test/shipped: "+want)
			require.Zero(t, b.Len())
		}
		require.Zero(t, pgtest.Value[int](t, tx, "SELECT count(*) FROM outbox.events"))
		require.Zero(t, pgtest.Value[int](t, tx, "SELECT count(*) FROM outbox.log"))

		var zero outbox.Topic[shipped]
		var noTx *pgxpool.Tx
		var noContext context.Context
		for _, spec := range shippedSpecs {
			topic := outbox.NewTopic[shipped](spec)
			for _, c := range []struct {
				want string
				call func() error
			}{
				{"enqueue test/shipped: no transaction given (nil)", func() error {
					_, err := topic.Enqueue(t.Context(), nil, ship(1))
					return err
				}},
				{"enqueue test/shipped: no transaction given (nil)", func() error {
					_, err := topic.EnqueueMany(t.Context(), noTx, []shipped{ship(1)})
					return err
				}},
				{"enqueue test/shipped: no context given (nil)", func() error {
					_, err := topic.Enqueue(noContext, tx, ship(1))
					return err
				}},
				{"enqueue test/shipped: no context given (nil)", func() error {
					_, err := topic.EnqueueMany(noContext, tx, []shipped{ship(1)})
					return err
				}},
				{"enqueue test/shipped: no batch given (nil)", func() error {
					_, err := topic.EnqueueInBatch(nil, ship(1))
					return err
				}},
				{"enqueue the zero topic: it was not made by NewTopic", func() error {
					_, err := zero.Enqueue(t.Context(), tx, ship(1))
					return err
				}},
				{"enqueue the zero topic: event 1 of 1: it was not made by NewTopic", func() error {
					_, err := zero.EnqueueMany(t.Context(), tx, []shipped{ship(1)})
					return err
				}},
				{"enqueue the zero topic: it was not made by NewTopic", func() error {
					_, err := zero.EnqueueInBatch(&pgx.Batch{}, ship(1))
					return err
				}},
			} {
				require.EqualError(t, c.call(), c.want)
			}
		}
	})
}
