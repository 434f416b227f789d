package eventkey_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/payload"
)

type color string

func TestNewKey(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("01890A5D-AC96-774B-BCCE-B302099A8057")
	key := eventkey.NewKey(
		eventkey.UUIDPart("id", id),
		eventkey.StringPart("name", "a/b%2F"),
		eventkey.StringPart("color", color("red")).Affix("c-", "-x"),
		eventkey.LiteralPart("v1"),
		eventkey.IntPart("n", int32(-5)),
		eventkey.IntPart("zero", int64(0)),
		eventkey.DatePart("day", payload.Date{Year: 2026, Month: 11, Day: 2}),
	)
	require.NoError(t, key.Err())
	require.Equal(t, "01890a5d-ac96-774b-bcce-b302099a8057/a%2Fb%252F/c-red-x/v1/-5/0/2026-11-02", key.String())
	require.False(t, key.IsZero())
}

func TestZeroKey(t *testing.T) {
	t.Parallel()
	require.True(t, eventkey.Key{}.IsZero())
	require.NoError(t, eventkey.Key{}.Err())
	require.Empty(t, eventkey.Key{}.String())
}

func TestKeyEmptyPart(t *testing.T) {
	t.Parallel()
	for field, part := range map[string]eventkey.KeyPart{
		"id":   eventkey.UUIDPart("id", uuid.Nil),
		"name": eventkey.StringPart("name", "").Affix("a", "b"),
		"day":  eventkey.DatePart("day", payload.Date{}),
	} {
		key := eventkey.NewKey(eventkey.LiteralPart("x"), part, eventkey.StringPart("later", ""))
		require.ErrorIs(t, key.Err(), outbox.ErrEmptyKeyPart)
		require.ErrorContains(t, key.Err(), "field "+field+":")
		require.Empty(t, key.String())
		require.False(t, key.IsZero(), "a key with an empty part is an error, not an absent key")
	}
}

// TestKeyIsInjective draws tuples of strings with the characters that matter to the encoding.
func TestKeyIsInjective(t *testing.T) {
	t.Parallel()
	part := rapid.StringOfN(rapid.SampledFrom([]rune("%/2F5ab-")), 1, 6, -1)
	render := func(tuple []string) string {
		parts := make([]eventkey.KeyPart, len(tuple))
		for i, s := range tuple {
			parts[i] = eventkey.StringPart("s", s).Affix("a", "b")
		}
		return eventkey.NewKey(parts...).String()
	}
	rapid.Check(t, func(rt *rapid.T) {
		tuple := rapid.SliceOfN(part, 3, 3)
		a, b := tuple.Draw(rt, "a"), tuple.Draw(rt, "b")
		require.Equal(rt, strings.Join(a, "\n") == strings.Join(b, "\n"), render(a) == render(b))
		require.Equal(rt, 2, strings.Count(render(a), "/"))
	})
}

func TestUUIDPartIsString(t *testing.T) {
	t.Parallel()
	for range 100 {
		id := uuid.New()
		require.Equal(t, id.String(), eventkey.NewKey(eventkey.UUIDPart("id", id)).String())
	}
}

func TestNewKeyAllocations(t *testing.T) { // counts allocations
	a, b := uuid.New(), uuid.New()
	allocs := testing.AllocsPerRun(100, func() {
		_ = eventkey.NewKey(eventkey.UUIDPart("a", a), eventkey.UUIDPart("b", b), eventkey.IntPart("n", int64(7))).String()
	})
	require.LessOrEqual(t, allocs, 1.0)
}
