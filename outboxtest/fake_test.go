package outboxtest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	events "github.com/outboxgen/outboxgen/generator/testdata/fakes/want"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxfake"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/payload"
)

// world is a way to enqueue: with PostgreSQL or with a fake.
type world struct {
	begin    func(ctx context.Context) (pgx.Tx, error)
	shop     events.ShopEnqueuer
	calendar events.CalendarEnqueuer
	ids      map[uuid.UUID]int // the events, numbered as they appear
	log      []string          // what became of each call
}

// Rules break or keep the rules of order_placed, one each.
var orderRules = []struct {
	name   string
	change func(p *events.OrderPlaced)
}{
	{"valid", func(*events.OrderPlaced) {}},
	{"tenant zero", func(p *events.OrderPlaced) { p.TenantID = uuid.Nil }},
	{"key part empty", func(p *events.OrderPlaced) { p.OrderNo = "" }},
	{"key part with slash", func(p *events.OrderPlaced) { p.OrderNo = "a/b%c" }},
	{"key as long as it may be", func(p *events.OrderPlaced) { p.OrderNo = strings.Repeat("k", outbox.MaxKeyBytes-37) }},
	{"key too long", func(p *events.OrderPlaced) { p.OrderNo = strings.Repeat("k", outbox.MaxKeyBytes-36) }},
	{"key with NUL", func(p *events.OrderPlaced) { p.OrderNo = "a\x00" }},
	{"key not UTF-8", func(p *events.OrderPlaced) { p.OrderNo = "a\xff" }},
	{"partition key empty", func(p *events.OrderPlaced) { p.Customer = "" }},
	{"partition key too long", func(p *events.OrderPlaced) { p.Customer = strings.Repeat("c", outbox.MaxKeyBytes+1) }},
	{"text too long", func(p *events.OrderPlaced) { p.Customer = strings.Repeat("c", 601) }},
	{"enum unknown", func(p *events.OrderPlaced) { p.Channel = "fax" }},
	{"enum empty", func(p *events.OrderPlaced) { p.Channel = "" }},
	{"list nil", func(p *events.OrderPlaced) { p.Lines, p.Labels = nil, nil }},
	{"list too long", func(p *events.OrderPlaced) { p.Lines = make([]events.Line, 4) }},
	{"pattern", func(p *events.OrderPlaced) { p.Lines = []events.Line{{Sku: "a", Count: 1}} }},
	{"below min", func(p *events.OrderPlaced) { p.Lines = []events.Line{{Sku: "A-1", Count: 0}} }},
	{"NaN", func(p *events.OrderPlaced) { p.Weight = math.NaN() }},
	{"infinity", func(p *events.OrderPlaced) { p.Weight = math.Inf(-1) }},
	{"time zero", func(p *events.OrderPlaced) { p.PlacedAt = time.Time{} }},
	{"year", func(p *events.OrderPlaced) { p.PlacedAt = time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC) }},
	{"NUL in map", func(p *events.OrderPlaced) { p.Labels = map[string]string{"a": "\x00"} }},
	{"NUL in key of map", func(p *events.OrderPlaced) { p.Labels = map[string]string{"\x00": "a"} }},
	{"surrogate", func(p *events.OrderPlaced) { p.Extra = raw(`"\ud800"`) }},
	{"escaped NUL", func(p *events.OrderPlaced) { p.Extra = raw(`"\u0000"`) }},
	{"huge number", func(p *events.OrderPlaced) { p.Extra = raw(`1e200000`) }},
	{"no JSON", func(p *events.OrderPlaced) { p.Extra = raw(`{"a":`) }},
	{"too deep", func(p *events.OrderPlaced) { p.Extra = raw(strings.Repeat("[", 5000) + strings.Repeat("]", 5000)) }},
	{"too large", func(p *events.OrderPlaced) { p.Extra = raw(`"` + strings.Repeat("x", outbox.MaxPayloadBytes) + `"`) }},
	{"several", func(p *events.OrderPlaced) { p.TenantID, p.OrderNo, p.Channel = uuid.Nil, "", "fax" }},
	{"sensitive", func(p *events.OrderPlaced) { p.Comment = pointer("secret") }},
}

func raw(text string) json.RawMessage { return json.RawMessage(text) }

var fakeTenants = [...]uuid.UUID{uuid.MustParse("6f3c1a4e-0000-4000-8000-000000000001"), uuid.MustParse("6f3c1a4e-0000-4000-8000-000000000002")}

func validOrder(tenant uuid.UUID, orderNo string) events.OrderPlaced {
	return events.OrderPlaced{
		TenantID: tenant, OrderNo: orderNo, Customer: "c-1", Revision: 3, Channel: events.ChannelShop,
		Lines: []events.Line{{Sku: "ABC-1", Count: 2}}, Weight: 1.5, Labels: map[string]string{"a": "b"},
		PlacedAt: time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC),
	}
}

// Options keep or break the rules of options, one each.
var fakeOptions = []struct {
	name string
	opts []outbox.EnqueueOption
}{
	{"none", nil},
	{"headers", []outbox.EnqueueOption{outbox.WithHeaders(map[string]string{"traceparent": "x", "b": "ü"})}},
	{"headers empty", []outbox.EnqueueOption{outbox.WithHeaders(map[string]string{})}},
	{"headers with NUL", []outbox.EnqueueOption{outbox.WithHeaders(map[string]string{"a": "\x00"})}},
	{"headers too large", []outbox.EnqueueOption{outbox.WithHeaders(map[string]string{"a": strings.Repeat("x", outbox.MaxPayloadBytes)})}},
	{"not before", []outbox.EnqueueOption{outbox.WithNotBefore(time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC))}},
	{"not before, year", []outbox.EnqueueOption{outbox.WithNotBefore(time.Date(-5, 1, 1, 0, 0, 0, 0, time.UTC))}},
	{"tenant", []outbox.EnqueueOption{outbox.WithTenant(fakeTenants[0])}},
	{"tenant other", []outbox.EnqueueOption{outbox.WithTenant(fakeTenants[1])}},
	{"nil", []outbox.EnqueueOption{nil}},
}

// note notes the result of a call: receipts by the number of their event, the text of the error, and which errors it is.
func (w *world) note(what string, receipts []outbox.Receipt, err error) {
	line := what + ":"
	for _, r := range receipts {
		if _, known := w.ids[r.ID]; !known {
			w.ids[r.ID] = len(w.ids)
		}
		if err == nil {
			line += fmt.Sprintf(" %d/%t", w.ids[r.ID], r.Duplicate)
		}
	}
	if err != nil {
		line += " " + err.Error()
		for _, is := range []error{outbox.ErrTenantMismatch, outbox.ErrEmptyKeyPart, outbox.ErrKeyTooLong, outbox.ErrPayloadInvalid, outbox.ErrPayloadTooLarge, pgx.ErrTxClosed} {
			line += fmt.Sprintf(" %t", errors.Is(err, is))
		}
		var invalid *payload.ValidationError
		line += fmt.Sprintf(" %t", errors.As(err, &invalid))
	}
	w.log = append(w.log, line)
}

// in runs f in a transaction and ends it as said.
func (w *world) in(t *testing.T, commit bool, f func(tx pgx.Tx)) {
	t.Helper()
	tx, err := w.begin(t.Context())
	require.NoError(t, err)
	f(tx)
	if commit {
		require.NoError(t, tx.Commit(t.Context()))
	} else {
		require.NoError(t, tx.Rollback(t.Context()))
	}
	_, err = w.shop.EnqueueOrderPlaced(t.Context(), tx, validOrder(fakeTenants[0], "late"))
	w.note("after the end", nil, err)
	require.ErrorIs(t, tx.Rollback(t.Context()), pgx.ErrTxClosed)
}

// everyRule enqueues one payload for each rule, alone and among others, and with each option.
func (w *world) everyRule(t *testing.T) {
	w.in(t, true, func(tx pgx.Tx) {
		for n, rule := range orderRules {
			p := validOrder(fakeTenants[0], fmt.Sprint("rule-", n))
			rule.change(&p)
			r, err := w.shop.EnqueueOrderPlaced(t.Context(), tx, p)
			w.note(rule.name, []outbox.Receipt{r}, err)
			rs, err := w.shop.EnqueueOrderPlacedMany(t.Context(), tx, []events.OrderPlaced{validOrder(fakeTenants[1], fmt.Sprint("before-", n)), p})
			w.note(rule.name+", many", rs, err)
		}
		for n, o := range fakeOptions {
			r, err := w.shop.EnqueueOrderPlaced(t.Context(), tx, validOrder(fakeTenants[0], fmt.Sprint("option-", n)), o.opts...)
			w.note(o.name, []outbox.Receipt{r}, err)
			rs, err := w.shop.EnqueueNoteAddedMany(t.Context(), tx, []events.NoteAdded{
				{TenantID: fakeTenants[0], NoteID: uuid.NewSHA1(uuid.Nil, []byte(o.name)), OrderNo: "1", Text: "t"},
			}, o.opts...)
			w.note(o.name+", log", rs, err)
			rb, err := w.calendar.EnqueueBegin(t.Context(), tx, events.Begin{Text: o.name}, o.opts...)
			w.note(o.name+", without keys", []outbox.Receipt{rb}, err)
		}
		rs, err := w.shop.EnqueueOrderPlacedMany(t.Context(), tx, nil)
		w.note("none", rs, err)
	})
}

// atRandom enqueues with keys that repeat, in transactions and savepoints that are committed or rolled back.
func (w *world) atRandom(t *testing.T, rnd *rand.Rand) {
	order := func() events.OrderPlaced {
		return validOrder(fakeTenants[rnd.IntN(2)], fmt.Sprint("k", rnd.IntN(12)))
	}
	calls := func(tx pgx.Tx) {
		for range 1 + rnd.IntN(3) {
			switch rnd.IntN(4) {
			case 0:
				n := events.NoteAdded{TenantID: fakeTenants[0], NoteID: uuid.UUID{15: byte(1 + rnd.IntN(8))}, OrderNo: "1", Text: "t"}
				r, err := w.shop.EnqueueNoteAdded(t.Context(), tx, n)
				w.note("note", []outbox.Receipt{r}, err)
			case 1:
				r, err := w.shop.EnqueueOrderPlaced(t.Context(), tx, order())
				w.note("order", []outbox.Receipt{r}, err)
			case 2:
				ps := make([]events.OrderPlaced, rnd.IntN(6))
				for i := range ps {
					ps[i] = order()
				}
				rs, err := w.shop.EnqueueOrderPlacedMany(t.Context(), tx, ps)
				w.note("orders", rs, err)
			case 3:
				rs, err := w.calendar.EnqueueEventsMany(t.Context(), tx, []events.Events{{ID: uuid.UUID{1}}, {ID: uuid.UUID{2}}})
				w.note("without keys", rs, err)
			}
		}
	}
	for range 150 {
		w.in(t, rnd.IntN(3) > 0, func(tx pgx.Tx) {
			calls(tx)
			for range rnd.IntN(3) {
				inner, err := tx.Begin(t.Context())
				require.NoError(t, err)
				calls(inner)
				if rnd.IntN(2) == 0 {
					require.NoError(t, inner.Commit(t.Context()))
				} else {
					require.NoError(t, inner.Rollback(t.Context()))
				}
				_, err = w.shop.EnqueueOrderPlaced(t.Context(), inner, order())
				w.note("after the savepoint", nil, err)
			}
			calls(tx)
		})
	}
}

// TestFakeEqualsPostgreSQL runs the same calls with PostgreSQL and with the generated fake. Every receipt and every error
// must be the same, and in the end both must have the same events.
func TestFakeEqualsPostgreSQL(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	fake := events.NewFakeShop()
	shared := fake.DB
	calendar := &events.FakeCalendar{DB: shared}
	worlds := []*world{
		{begin: pool.Begin, shop: events.ShopOutbox{}, calendar: events.CalendarOutbox{}},
		{begin: fake.Begin, shop: fake, calendar: calendar},
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, w := range worlds {
		w.ids = make(map[uuid.UUID]int)
		w.everyRule(t)
		w.atRandom(t, rand.New(rand.NewPCG(seed, 1)))
	}
	real, faked := worlds[0], worlds[1]
	require.Equal(t, real.log, faked.log)
	outcomes := strings.Join(real.log, "\n")
	for _, rule := range orderRules {
		require.Contains(t, outcomes, rule.name+":")
	}

	// The rows. Numbers stand for ids, which differ.
	rows := func(table string) []string {
		found, err := pool.Query(t.Context(), "SELECT id, namespace || '/' || topic, version, tenant_id, dedupe_key, partition_key, entity_type, entity_id, entity_version, headers, payload FROM outbox."+table)
		require.NoError(t, err)
		list, err := pgx.CollectRows(found, func(row pgx.CollectableRow) (string, error) {
			var r storedRow
			var key, partition, entity, id *string
			var version *int64
			err := row.Scan(&r.id, &r.topic, &r.version, &r.tenant, &key, &partition, &entity, &id, &version, &r.headers, &r.payload)
			r.keys = [4]string{text(key), text(partition), text(entity), text(id)}
			if version != nil {
				r.entityVersion = *version
			}
			return r.line(t, real.ids), err
		})
		require.NoError(t, err)
		return list
	}
	want := append(rows("events"), rows("log")...)
	var have []string
	add := func(e outbox.Event, p any) {
		encoded, err := json.Marshal(p)
		require.NoError(t, err)
		r := storedRow{
			id: e.ID, topic: e.Namespace + "/" + e.Topic, version: e.Version, tenant: e.TenantID,
			keys: [4]string{e.DedupeKey, e.PartitionKey, e.Entity.Type, e.Entity.ID}, entityVersion: e.Entity.Version,
			headers: e.Headers, payload: encoded,
		}
		have = append(have, r.line(t, faked.ids))
	}
	for _, e := range outboxfake.Events(fake.DB, events.OrderPlacedTopic) {
		add(e.Event, e.Payload)
	}
	for _, e := range outboxfake.Events(fake.DB, events.NoteAddedTopic) {
		add(e.Event, e.Payload)
	}
	for _, e := range outboxfake.Events(fake.DB, events.EventsTopic) {
		add(e.Event, e.Payload)
	}
	for _, e := range outboxfake.Events(fake.DB, events.BeginTopic) {
		add(e.Event, e.Payload)
	}
	require.ElementsMatch(t, want, have)
	require.Len(t, fake.Events(), len(have))
	require.Len(t, fake.OrderPlaced(), len(outboxfake.Events(fake.DB, events.OrderPlacedTopic)))
	require.Equal(t, []events.Begin{{Text: "none"}}, calendar.Begin()[:1])
}

// storedRow is what a row of the tables and an event of a fake have in common.
type storedRow struct {
	id            uuid.UUID
	topic         string
	version       int
	tenant        uuid.NullUUID
	keys          [4]string
	entityVersion int64
	headers       map[string]string
	payload       []byte
}

func (r storedRow) line(t *testing.T, ids map[uuid.UUID]int) string {
	var p any
	require.NoError(t, json.Unmarshal(r.payload, &p))
	sorted, err := json.Marshal(p)
	require.NoError(t, err)
	return fmt.Sprintf("%d %s %d %v %q %d %v %s", ids[r.id], r.topic, r.version, r.tenant, r.keys, r.entityVersion, r.headers, sorted)
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// TestFakeIsDocumented: the example in the documentation is the one that compiles.
func TestFakeIsDocumented(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("fake_example_test.go")
	require.NoError(t, err)
	_, example, found := strings.Cut(string(source), "// Turns is the code under test.")
	require.True(t, found)
	docs, err := os.ReadFile("../docs/model/testing.md")
	require.NoError(t, err)
	require.Contains(t, string(docs), strings.TrimSpace(example))
}

// pointer returns a pointer to a copy of v.
func pointer[T any](v T) *T { return &v }
