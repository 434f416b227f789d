package cli

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// FuzzArguments: what an operator types means one thing, or is refused by an error that quotes it.
func FuzzArguments(f *testing.F) {
	for _, text := range []string{
		"2h", "2026-05-01T12:00:00Z", "-2h", "2562047h47m", "mini_chat/turn_finalized", "a/", "/b", "a/b/c", uuid.NewString(), "0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e1",
		"{0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11}", "\x1b[31m",
	} {
		f.Add(text)
	}
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string) {
		bounded := func(err error) { require.Less(t, len(err.Error()), 6*len(text)+300) }
		if until, err := parseUntil(text, now); err != nil {
			bounded(err)
		} else {
			require.True(t, until.After(now))
		}
		if id, err := parseID(text); err != nil {
			bounded(err)
		} else {
			require.NotEqual(t, uuid.Nil, id)
		}
		var limit limitFlags
		if err := limit.parse(text); err != nil {
			bounded(err)
		} else {
			require.Equal(t, text, limit.scope.Namespace+"/"+limit.scope.Topic)
		}
		for _, pause := range []pauseFlags{{}, {tenant: text}} {
			if err := pause.parse([]string{text}); err != nil {
				bounded(err)
			} else {
				require.NotEmpty(t, pause.scope.Namespace)
			}
		}
	})
}
