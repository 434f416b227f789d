package decode_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/payloads/decode"
	"github.com/outboxgen/outboxgen/internal/payloads/sealing"
	"github.com/outboxgen/outboxgen/payload"
	"github.com/outboxgen/outboxgen/seal"
)

type personV1 struct {
	Mail string `json:"mail"`
}

type person struct {
	Key   string `json:"key"`
	Email string `json:"email" outbox:"sealed"`
}

// sealedAs returns v as the JSON that is stored: sealed as s says.
func sealedAs(t *testing.T, s *sealing.Shape, e sealing.Event, v any) json.RawMessage {
	t.Helper()
	plain, err := json.Marshal(v)
	require.NoError(t, err)
	stored, err := s.Seal(t.Context(), seal.ForTests(), e, plain)
	require.NoError(t, err)
	require.NotEqual(t, string(plain), string(stored))
	return stored
}

func shapeOf[T any](t *testing.T) *sealing.Shape {
	t.Helper()
	s, err := sealing.Of(reflect.TypeFor[T]())
	require.NoError(t, err)
	return s
}

// TestOpen: what is sealed is opened as its version was sealed, and then brought to the newest version. What cannot be opened, or has
// a version that is not known, is an error of Open.
func TestOpen(t *testing.T) {
	t.Parallel()
	e := sealing.Event{ID: uuid.New()}
	step := payload.Upcast(1, func(old personV1) (person, error) { return person{Key: "k", Email: old.Mail}, nil })
	plainV1 := decode.NewDecoder(reflect.TypeFor[person](), 2, true, step)
	wholeV1 := decode.NewDecoder(reflect.TypeFor[person](), 2, true, step.Sealed())
	whole := decode.NewDecoder(reflect.TypeFor[person](), 1, true).Sealed()
	unsealed := decode.NewDecoder(reflect.TypeFor[personV1](), 1, true)
	want := &person{Key: "k", Email: "a@b"}
	fields := sealedAs(t, shapeOf[person](t), e, want)
	ctx := seal.ContextWithKeyring(t.Context(), seal.ForTests())
	for name, c := range map[string]struct {
		of      *decode.Decoder
		version int
		stored  json.RawMessage
		want    any
	}{
		"fields of the newest version": {plainV1, 2, fields, want},
		"nothing of the older version": {plainV1, 1, json.RawMessage(`{"mail": "a@b"}`), want},
		"all of the older version":     {wholeV1, 1, sealedAs(t, sealing.Whole, e, personV1{Mail: "a@b"}), want},
		"all of the newest version":    {whole, 1, sealedAs(t, sealing.Whole, e, want), want},
		"nothing":                      {unsealed, 1, json.RawMessage(`{"mail": "a@b"}`), &personV1{Mail: "a@b"}},
	} {
		for how, open := range map[string]func() (any, error){
			"Open":   func() (any, error) { return c.of.Open(ctx, e, c.version, c.stored) },
			"Derive": func() (any, error) { return c.of.Derive(ctx, e, c.version, c.stored) },
		} {
			got, err := open()
			require.NoError(t, err, "%s of %s", how, name)
			if c.of == plainV1 && c.version == 2 && how == "Derive" {
				require.Equal(t, &person{Key: "k"}, got, "a sealed field stays closed")
				continue
			}
			require.Equal(t, c.want, got, "%s of %s", how, name)
		}
	}

	_, err := plainV1.Open(t.Context(), e, 2, fields)
	require.ErrorIs(t, err, sealing.ErrNoKeyring)
	require.ErrorContains(t, err, "open payload: ")
	derived, err := plainV1.Derive(t.Context(), e, 2, fields)
	require.NoError(t, err, "no key is needed")
	require.Equal(t, &person{Key: "k"}, derived)
	_, err = whole.Derive(t.Context(), e, 1, sealedAs(t, sealing.Whole, e, want))
	require.ErrorIs(t, err, sealing.ErrNoKeyring, "nothing can be derived of what is sealed as a whole")

	for _, open := range []func(version int, stored json.RawMessage) (any, error){
		func(version int, stored json.RawMessage) (any, error) {
			return plainV1.Open(t.Context(), e, version, stored)
		},
		func(version int, stored json.RawMessage) (any, error) {
			return plainV1.Derive(t.Context(), e, version, stored)
		},
	} {
		_, err = open(3, fields)
		require.EqualError(t, err, "payload has version 3, this process knows 2")
		require.False(t, errclass.IsPermanent(err))
	}
	_, err = plainV1.Derive(ctx, e, 2, json.RawMessage(`{"key": 17}`))
	require.EqualError(t, err, `decode payload: field "key" does not fit string`)
	require.True(t, errclass.IsPermanent(err))
	_, err = unsealed.Derive(ctx, e, 1, json.RawMessage(`{}`))
	require.EqualError(t, err, "decode payload: field mail is missing")
}

type hides struct{ person }

func (hides) MarshalJSON() ([]byte, error) { return []byte("1"), nil }

// TestOpenWithoutShape: if nobody can say what is sealed, no attempt can open it.
func TestOpenWithoutShape(t *testing.T) {
	t.Parallel()
	d := decode.NewDecoder(reflect.TypeFor[hides](), 1, false)
	_, err := d.Open(t.Context(), sealing.Event{}, 1, json.RawMessage(`1`))
	require.ErrorContains(t, err, "open payload: ")
	require.True(t, errclass.IsPermanent(err))
}
