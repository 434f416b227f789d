package outbox_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/payload"
)

type color string

func TestNewKey(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("01890A5D-AC96-774B-BCCE-B302099A8057")
	key := outbox.NewKey(
		outbox.UUIDPart("id", id),
		outbox.StringPart("name", "a/b%2F"),
		outbox.StringPart("color", color("red")).Affix("c-", "-x"),
		outbox.LiteralPart("v1"),
		outbox.IntPart("n", int32(-5)),
		outbox.IntPart("zero", int64(0)),
		outbox.DatePart("day", payload.Date{Year: 2026, Month: 11, Day: 2}),
	)
	require.NoError(t, key.Err())
	require.Equal(t, "01890a5d-ac96-774b-bcce-b302099a8057/a%2Fb%252F/c-red-x/v1/-5/0/2026-11-02", key.String())
	require.False(t, key.IsZero())
}

func TestZeroKey(t *testing.T) {
	t.Parallel()
	require.True(t, outbox.Key{}.IsZero())
	require.NoError(t, outbox.Key{}.Err())
	require.Empty(t, outbox.Key{}.String())
}

func TestKeyEmptyPart(t *testing.T) {
	t.Parallel()
	for field, part := range map[string]outbox.KeyPart{
		"id":   outbox.UUIDPart("id", uuid.Nil),
		"name": outbox.StringPart("name", "").Affix("a", "b"),
		"day":  outbox.DatePart("day", payload.Date{}),
	} {
		key := outbox.NewKey(outbox.LiteralPart("x"), part, outbox.StringPart("later", ""))
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
		parts := make([]outbox.KeyPart, len(tuple))
		for i, s := range tuple {
			parts[i] = outbox.StringPart("s", s).Affix("a", "b")
		}
		return outbox.NewKey(parts...).String()
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
		require.Equal(t, id.String(), outbox.NewKey(outbox.UUIDPart("id", id)).String())
	}
}

func TestNewKeyAllocations(t *testing.T) { // counts allocations
	a, b := uuid.New(), uuid.New()
	allocs := testing.AllocsPerRun(100, func() {
		_ = outbox.NewKey(outbox.UUIDPart("a", a), outbox.UUIDPart("b", b), outbox.IntPart("n", int64(7))).String()
	})
	require.LessOrEqual(t, allocs, 1.0)
}
