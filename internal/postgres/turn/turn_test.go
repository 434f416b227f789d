package turn_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/turn"
)

// TestTurns: a turn is made of the tag, the tenant and the keys, and each limit knows which part is its key.
func TestTurns(t *testing.T) {
	t.Parallel()
	require.True(t, turn.ShapeOf("a", false, nil).IsZero())
	require.Equal(t, "tenant/1", turn.ShapeOf("a", true, nil).Of("1", nil))
	whole := turn.ShapeOf("a", false, []string{""})
	require.Equal(t, whole.Tag(), whole.Of("1", nil))
	pers := []string{"", "{mailbox}", "tenant", "destination"}
	all := turn.ShapeOf("a", false, pers)
	require.Equal(t, all.Tag()+"/1/m%2F%25/d", all.Of("1", []string{"m/%", "d"}))
	for per, want := range map[string]int{"": 0, "tenant": 1, "{mailbox}": 2, "destination": 3} {
		require.Equal(t, want, all.Part(per), per)
	}
	require.Equal(t, 1, turn.ShapeOf("a", false, []string{"{mailbox}"}).Part("{mailbox}"))
	require.Equal(t, 2, turn.ShapeOf("a", true, []string{"{mailbox}"}).Part("{mailbox}"))
}

// TestApart: turns share a key if a limit is of the whole topic, or if they are made of several parts.
func TestApart(t *testing.T) {
	t.Parallel()
	require.True(t, turn.ShapeOf("a", true, nil).Apart())
	require.True(t, turn.ShapeOf("a", false, []string{"{mailbox}"}).Apart())
	require.True(t, turn.ShapeOf("a", true, []string{"tenant"}).Apart())
	require.False(t, turn.ShapeOf("a", true, []string{""}).Apart())
	require.False(t, turn.ShapeOf("a", true, []string{"{mailbox}"}).Apart())
	require.False(t, turn.ShapeOf("a", false, []string{"tenant", "destination"}).Apart())
}

// TestTagsDiffer: events that were filed for other limits, or for another topic, have other tags.
func TestTagsDiffer(t *testing.T) {
	t.Parallel()
	tags := make(map[string]bool)
	for _, s := range []turn.Shape{
		turn.ShapeOf("a", false, []string{""}), turn.ShapeOf("b", false, []string{""}), turn.ShapeOf("a", true, []string{""}),
		turn.ShapeOf("a", false, []string{"tenant"}), turn.ShapeOf("a", false, []string{"", "tenant"}), turn.ShapeOf("a", true, nil),
	} {
		require.False(t, tags[s.Tag()], s.Tag())
		tags[s.Tag()] = true
	}
}

// TestLongKeys: a key that is too long for the index is cut, and stays different from others.
func TestLongKeys(t *testing.T) {
	t.Parallel()
	s := turn.ShapeOf("a", false, []string{"{x}"})
	a, b := s.Of("", []string{strings.Repeat("é/", 300) + "a"}), s.Of("", []string{strings.Repeat("é/", 300) + "b"})
	require.NotEqual(t, a, b)
	require.Less(t, len(a), 220)
	require.True(t, strings.HasPrefix(a, s.Tag()+"/é%2F"))
	require.Len(t, strings.Split(a, "/"), 2)
}

// TestKey: a part of a turn tells its key.
func TestKey(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "a", "a/b", "%", "%2F", "%252F/", "é"} {
		text := turn.ShapeOf("a", false, []string{"{k}"}).Of("", []string{key})
		_, part, _ := strings.Cut(text, "/")
		require.Equal(t, key, turn.Key(part))
	}
}
