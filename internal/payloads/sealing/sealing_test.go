package sealing_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/payloads/sealing"
	"github.com/outboxgen/outboxgen/seal"
)

type contact struct {
	Email string            `json:"email" outbox:"sealed"`
	Name  string            `json:"name"`
	Tags  map[string]string `json:"tags,omitempty" outbox:"sealed"`
}

type order struct {
	ID       uuid.UUID          `json:"id"`
	Amount   int64              `json:"amount" outbox:"sealed"`
	Contact  *contact           `json:"contact,omitempty"`
	Contacts []contact          `json:"contacts"`
	ByName   map[string]contact `json:"by_name"`
	Bytes    []byte             `json:"bytes" outbox:"sealed"`
	Raw      json.RawMessage    `json:"raw" outbox:"sealed"`
	Note     *string            `json:"note,omitempty" outbox:"sealed"`
	Open     json.RawMessage    `json:"open"`
}

type tree struct {
	Secret string `json:"secret" outbox:"sealed"`
	Left   *tree  `json:"left,omitempty"`
}

var (
	event = sealing.Event{ID: uuid.New(), Tenant: uuid.NullUUID{UUID: uuid.New(), Valid: true}}
	ring  = seal.ForTests()
)

func shapeOf[T any](t testing.TB) *sealing.Shape {
	t.Helper()
	s, err := sealing.Of(reflect.TypeFor[T]())
	require.NoError(t, err)
	return s
}

// canary is a value that must not be seen.
const canary = "canary"

func full() order {
	c := contact{Email: canary + "@x", Name: "n", Tags: map[string]string{canary: canary}}
	note := canary
	return order{
		ID: uuid.New(), Amount: 4242424242, Contact: &c, Contacts: []contact{c, {Email: canary}},
		ByName: map[string]contact{"a/b~c \"ü\" [": c}, Bytes: []byte(canary), Raw: json.RawMessage(`{"a": ["canary", 1e3, "}\""]}`),
		Note: &note, Open: json.RawMessage(`{"x":["}",{"email":"open"}],"y":null,"z":-1.5}`),
	}
}

// TestSealAndOpen: what comes back is what was sealed, and nothing of it shows in between.
func TestSealAndOpen(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		shape   *sealing.Shape
		payload any
	}{
		"all":       {shapeOf[order](t), full()},
		"optional":  {shapeOf[order](t), order{Contacts: []contact{}, ByName: map[string]contact{}, Open: json.RawMessage("1"), Raw: json.RawMessage("null")}},
		"recursive": {shapeOf[tree](t), tree{Secret: canary, Left: &tree{Secret: canary}}},
		"whole":     {sealing.Whole, full()},
		"list":      {shapeOf[[]contact](t), []contact{{Email: canary}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			open, err := json.Marshal(c.payload)
			require.NoError(t, err)
			sealed, err := c.shape.Seal(t.Context(), ring, event, open)
			require.NoError(t, err)
			require.NotContains(t, string(sealed), canary)
			require.NotContains(t, string(sealed), "Y2FuYXJ5")
			require.NotContains(t, string(sealed), "4242424242")
			require.True(t, json.Valid(sealed))

			var spaced map[string]any // as jsonb has it
			if json.Unmarshal(sealed, &spaced) == nil {
				sealed, err = json.MarshalIndent(spaced, "", " \t")
				require.NoError(t, err)
			}
			again, err := c.shape.Open(t.Context(), ring, event, sealed)
			require.NoError(t, err)
			require.JSONEq(t, string(open), string(again))
		})
	}
}

// TestWithout: what is left needs no key.
func TestWithout(t *testing.T) {
	t.Parallel()
	s := shapeOf[order](t)
	for in, want := range map[string]string{
		`{"amount": "x", "id": 1, "note": null, "raw":1}`:            `{"id":1}`,
		`{"id":1,"amount":2}`:                                        `{"id":1}`,
		`{"note":"x"}`:                                               `{}`,
		`{"contacts":[{"email":"x","name":"n"},{"name":"m"}],"b":1}`: `{"contacts":[{"name":"n"},{"name":"m"}],"b":1}`,
		`[1]`: `[1]`,
		`no`:  `no`,
	} {
		require.Equal(t, want, string(s.Without([]byte(in))))
	}
	require.Equal(t, "{}", string((*sealing.Shape)(nil).Without([]byte("{}"))))
}

// TestNothingToSeal: a type without sealed fields has no shape, and costs nothing.
func TestNothingToSeal(t *testing.T) {
	t.Parallel()
	type open struct {
		Name string     `json:"name" outbox:"sensitive"`
		List []struct{} `json:"list"`
		Self *order     `json:"-"`
	}
	require.Nil(t, shapeOf[open](t))
	require.Nil(t, shapeOf[string](t))
	payload := []byte(`{"a":1}`)
	for _, call := range []func(context.Context, seal.Keyring, sealing.Event, []byte) ([]byte, error){
		shapeOf[open](t).Seal, shapeOf[open](t).Open,
	} {
		got, err := call(t.Context(), nil, event, payload)
		require.NoError(t, err)
		require.Same(t, &payload[0], &got[0])
	}
}

type custom struct {
	Secret string `outbox:"sealed"`
}

func (custom) MarshalJSON() ([]byte, error) { return []byte("1"), nil }

// TestWhatCannotBeFound: a sealed field that encoding/json does not write under its name is an error, not open.
func TestWhatCannotBeFound(t *testing.T) {
	t.Parallel()
	type embedded struct{ contact }
	type inner struct{ C custom }
	type hidden struct {
		secret string `outbox:"sealed"`
	}
	_ = hidden{}.secret
	for _, of := range []reflect.Type{
		reflect.TypeFor[embedded](), reflect.TypeFor[inner](), reflect.TypeFor[hidden](), reflect.TypeFor[map[string][]*custom](),
		reflect.TypeFor[struct {
			A string `json:"-" outbox:"sealed"`
		}](),
	} {
		s, err := sealing.Of(of)
		require.Nil(t, s)
		require.ErrorContains(t, err, "sealed", of)
	}
}

// keyring answers as a test says.
type keyring struct {
	key *seal.Key
	err error
}

func (k keyring) SealingKey(context.Context, uuid.NullUUID) (*seal.Key, error) { return k.key, k.err }

func (k keyring) OpeningKey(context.Context, uuid.NullUUID, string) (*seal.Key, error) {
	return k.key, k.err
}

// TestOpenErrors: each error says which field and which key, has its mark, and no value.
func TestOpenErrors(t *testing.T) {
	t.Parallel()
	s := shapeOf[order](t)
	open, err := json.Marshal(full())
	require.NoError(t, err)
	sealed, err := s.Seal(t.Context(), ring, event, open)
	require.NoError(t, err)
	whole, err := sealing.Whole.Seal(t.Context(), ring, event, open)
	require.NoError(t, err)
	var parts map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(sealed, &parts))
	of := func(member string, value string) []byte { return []byte(`{"` + member + `":` + value + `}`) }
	byHand, err := seal.NewKey("k1", []byte(strings.Repeat("k", 32)))
	require.NoError(t, err)
	box, err := byHand.For(event.ID, event.Tenant)
	require.NoError(t, err)

	const permanent, waits, unavailable = errclass.ClassRefused, errclass.ClassNotSent, errclass.ClassUnavailable
	for name, c := range map[string]struct {
		ring    seal.Keyring
		shape   *sealing.Shape
		event   sealing.Event
		payload []byte
		class   errclass.Class
		want    string
	}{
		"moved to a field":      {ring, s, event, of("note", string(parts["amount"])), permanent, "field note: it does not open with key for-tests-only: it was altered, or moved from another event, field or tenant"},
		"moved to an event":     {ring, s, sealing.Event{ID: uuid.New(), Tenant: event.Tenant}, of("amount", string(parts["amount"])), permanent, "field amount: it does not open with key for-tests-only: it was altered, or moved from another event, field or tenant"},
		"moved in a list":       {ring, s, event, []byte(`{"contacts":[{"name":"x"},{"email":` + firstEmail(t, parts["contacts"]) + `}]}`), permanent, "field contacts[1].email: it does not open with key for-tests-only: it was altered, or moved from another event, field or tenant"},
		"moved in a map":        {ring, s, event, []byte(`{"by_name":{"` + canary + `":{"email":` + firstEmail(t, parts["contacts"]) + `}}}`), permanent, "field by_name[*].email: it does not open with key for-tests-only: it was altered, or moved from another event, field or tenant"},
		"open":                  {ring, s, event, open, permanent, "field amount: it is not sealed"},
		"open text":             {ring, s, event, of("note", `"canary"`), permanent, "field note: it is not sealed"},
		"null":                  {ring, s, event, of("amount", "null"), permanent, "field amount: it is not sealed"},
		"other letters":         {ring, s, event, of("AMOUNT", string(parts["amount"])), permanent, "field amount: its name is written with other letters"},
		"other letters outside": {ring, s, event, of("Contact", `{"email":"x"}`), permanent, "field contact: its name is written with other letters"},
		"no keyring":            {nil, s, event, sealed, unavailable, "field amount: it is sealed with key for-tests-only: there is no keyring"},
		"no key":                {keyring{err: seal.ErrNoKey}, s, event, sealed, waits, "field amount: it is sealed with key for-tests-only: the keyring has no such key"},
		"destroyed":             {keyring{err: seal.ErrDestroyed}, s, event, sealed, permanent, "field amount: it is sealed with key for-tests-only: the key was destroyed"},
		"outage":                {keyring{err: errors.New("no answer")}, s, event, sealed, unavailable, "field amount: it is sealed with key for-tests-only: no answer"},
		"marked":                {keyring{err: errclass.Permanent(errors.New("never"))}, s, event, sealed, permanent, "field amount: it is sealed with key for-tests-only: never"},
		"no key, no error":      {keyring{}, s, event, sealed, unavailable, "field amount: it is sealed with key for-tests-only: the keyring returned no key, or one with another id, and no error"},
		"newer":                 {ring, s, event, of("amount", `"sealed:v2:k1:xyz"`), waits, "field amount: it has a later sealed form than this process knows: update the module outboxgen"},
		"not JSON":              {ring, s, event, []byte("{"), permanent, "the payload is not JSON"},
		"not JSON inside":       {keyring{key: byHand}, s, event, of("note", `"`+box.Seal("/note", []byte("canary"))+`"`), permanent, "field note: what key k1 opens is not JSON: it was altered, or moved from another event, field or tenant"},
		"whole, open":           {ring, sealing.Whole, event, open, permanent, "payload: it is not sealed"},
		"whole, and more":       {ring, sealing.Whole, event, append([]byte(`{"x":1,`), whole[1:]...), permanent, "payload: there is more than the sealed payload"},
		"whole, no key":         {keyring{err: seal.ErrNoKey}, sealing.Whole, event, whole, waits, "payload: it is sealed with key for-tests-only: the keyring has no such key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := c.shape.Open(t.Context(), c.ring, c.event, c.payload)
			require.EqualError(t, err, c.want)
			require.Nil(t, got)
			require.Equal(t, c.class, errclass.Of(err).Class)
			require.NotContains(t, err.Error(), canary)
		})
	}
}

func firstEmail(t *testing.T, contacts json.RawMessage) string {
	t.Helper()
	var list []map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(contacts, &list))
	return string(list[0]["email"])
}

func TestSealErrors(t *testing.T) {
	t.Parallel()
	s := shapeOf[order](t)
	for want, ring := range map[string]seal.Keyring{
		"there is no keyring":                                 nil,
		"get the key: no answer":                              keyring{err: errors.New("no answer")},
		"get the key: the keyring returned none and no error": keyring{},
	} {
		_, err := s.Seal(t.Context(), ring, event, []byte(`{}`))
		require.EqualError(t, err, want)
	}
}

func FuzzOpen(f *testing.F) {
	shape := shapeOf[order](f)
	f.Add([]byte(`{"amount":"sealed:v1:k1:AAAA","contacts":[{"email":1,"name":"}"}],"by_name":{"\u0061":{"tags":[]}}}`))
	f.Add([]byte(`{"open": [1, {"a": "\\\""}] , "$sealed": "x"}`))
	f.Add([]byte(` [ ] `))
	f.Fuzz(func(t *testing.T, payload []byte) {
		for _, s := range []*sealing.Shape{shape, sealing.Whole} {
			_, _ = s.Open(t.Context(), ring, event, payload)
			if !json.Valid(payload) {
				continue
			}
			require.True(t, json.Valid(s.Without(payload)))
			sealed, err := s.Seal(t.Context(), ring, event, payload)
			if err != nil {
				continue // a name with other letters
			}
			again, err := s.Open(t.Context(), ring, event, sealed)
			require.NoError(t, err)
			var was, is any
			require.NoError(t, json.Unmarshal(payload, &was))
			require.NoError(t, json.Unmarshal(again, &is))
			require.Equal(t, was, is)
		}
	})
}

func BenchmarkSeal(b *testing.B) {
	s, open := shapeOf[contact](b), []byte(`{"email":"anna@example.com","name":"Anna"}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Seal(b.Context(), ring, event, open); err != nil {
			b.Fatal(err)
		}
	}
}
