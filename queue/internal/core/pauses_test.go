package core

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// TestPauses: what is paused by a topic, a tenant, a tenant of a topic, or as a whole.
func TestPauses(t *testing.T) {
	t.Parallel()
	mine, nobody := uuid.NullUUID{UUID: tenant, Valid: true}, uuid.NullUUID{}
	everything, nothing := PausesOf(true, []string{"a"}), PausesOf(false, nil)
	some := PausesOf(false, []string{"b", "a", "b", tenant.String(), "c/" + tenant.String()})
	require.Equal(t, []string{tenant.String(), "a", "b", "c/" + tenant.String()}, some.Keys)
	require.Empty(t, everything.Keys)
	require.Empty(t, (*Pauses)(nil).Texts())
	require.Equal(t, some.Keys, some.Texts())
	require.False(t, (*Pauses)(nil).Any())
	for _, c := range []struct {
		p     *Pauses
		topic string
		of    uuid.NullUUID
		want  bool
	}{
		{everything, "x", nobody, true}, {nothing, "a", mine, false}, {some, "a", nobody, true}, {some, "x", mine, true}, {some, "x", nobody, false},
		{some, "c", uuid.NullUUID{UUID: uuid.UUID{1}, Valid: true}, false},
		{PausesOf(false, []string{"c/" + tenant.String()}), "c", mine, true},
	} {
		require.Equal(t, c.want, c.p.Event(c.topic, c.of), "%v %s", c.p, c.topic)
	}
	require.True(t, everything.Topic("x"))
	require.True(t, some.Topic("a"))
	require.True(t, some.Every([]string{"a", "b"}))
	require.False(t, some.Every([]string{"a", "c"}))
	require.False(t, some.Every(nil))
	require.True(t, everything.Every(nil))
	require.True(t, nothing.Ended(some))
	require.False(t, some.Ended(nothing))
	require.False(t, everything.Ended(some))
	require.True(t, some.Ended(everything))
	require.True(t, some.Equal(PausesOf(false, []string{"a", "b", tenant.String(), "c/" + tenant.String()})))
	require.False(t, some.Equal(nothing))
}
