package outbox_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/payload"
)

// TestPayloadNames: what package payload finds is found under the names of this package, by every one of them.
func TestPayloadNames(t *testing.T) {
	t.Parallel()
	var date outbox.Date
	list := []string{"\xff"}
	entries := map[string]string{"k": "\xff"}
	for name, pair := range map[string][2]outbox.FieldErrors{
		"Text":        {outbox.Text("f", "\xff"), payload.Text("f", "\xff")},
		"MinLen":      {outbox.MinLen("f", "a", 2), payload.MinLen("f", "a", 2)},
		"MaxLen":      {outbox.MaxLen("f", "abc", 2), payload.MaxLen("f", "abc", 2)},
		"Min":         {outbox.Min("f", 1, 2), payload.Min("f", 1, 2)},
		"Max":         {outbox.Max("f", 3, 2), payload.Max("f", 3, 2)},
		"JSON":        {outbox.JSON("f", nil), payload.JSON("f", nil)},
		"MinBytes":    {outbox.MinBytes("f", 1, 2), payload.MinBytes("f", 1, 2)},
		"MaxBytes":    {outbox.MaxBytes("f", 3, 2), payload.MaxBytes("f", 3, 2)},
		"MinItems":    {outbox.MinItems("f", 1, 2), payload.MinItems("f", 1, 2)},
		"MaxItems":    {outbox.MaxItems("f", 3, 2), payload.MaxItems("f", 3, 2)},
		"Valid":       {outbox.Valid("f", date), payload.Valid("f", date)},
		"Optional":    {outbox.Optional("f", &list[0], outbox.Text), payload.Optional("f", &list[0], payload.Text)},
		"All":         {outbox.All(outbox.Text("f", "\xff")), payload.Text("f", "\xff")},
		"IfAny":       {outbox.IfAny(1, outbox.Text("f", "\xff")), payload.Text("f", "\xff")},
		"Each":        {outbox.Each("f", list, outbox.Text), payload.Each("f", list, payload.Text)},
		"EachIn":      {outbox.EachIn(outbox.Text)("f", list), payload.Each("f", list, payload.Text)},
		"EachValue":   {outbox.EachValue("f", entries, outbox.Text), payload.EachValue("f", entries, payload.Text)},
		"EachValueIn": {outbox.EachValueIn(outbox.Text)("f", entries), payload.EachValue("f", entries, payload.Text)},
	} {
		require.NotEmpty(t, pair[1], name)
		require.Equal(t, pair[1], pair[0], name)
	}
	err := outbox.Enum("color", "blue", "red")
	require.ErrorIs(t, err, outbox.ErrPayloadInvalid)
	require.ErrorIs(t, err, payload.ErrInvalid)
	require.NoError(t, outbox.Check("a/b", outbox.AnyValue("f", 1)))
	_, err = outbox.ParseDate("2023-02-29")
	require.Error(t, err)
	var b strings.Builder
	outbox.FormatMasked(&b, struct{ Name string }{"ann"}, "Name")
	require.Equal(t, "{Name:[masked]}", b.String())
}
