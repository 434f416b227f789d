package admin

import (
	"encoding/base64"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// FuzzBookmark: a page begins at a place of its list, or is refused, whatever somebody has made of its link.
func FuzzBookmark(f *testing.F) {
	f.Add(bookmark{Section: 2, ID: uuid.New(), No: 7, Begun: true}.String(), 3)
	f.Add("", 1)
	f.Add(base64.RawURLEncoding.EncodeToString([]byte(`{"s":-1,"n":9223372036854775807}`)), 3)
	f.Add(base64.RawURLEncoding.EncodeToString([]byte(`{"s":1,"t":"0000-01-01T00:00:00Z","i":"x"}`)), 3)
	f.Fuzz(func(t *testing.T, text string, sections int) {
		sections = max(1, sections%10)
		p, err := parseBookmark(text, sections)
		if err != nil {
			require.Less(t, len(err.Error()), 200, "it does not quote the text")
			return
		}
		require.True(t, 0 <= p.Section && p.Section < sections)
		again, err := parseBookmark(p.String(), sections)
		require.NoError(t, err)
		require.Equal(t, p.String(), again.String())
	})
}

// FuzzSnapshot: what is read of a pg_snapshot is written as it was.
func FuzzSnapshot(f *testing.F) {
	for _, text := range []string{"1:1:", "10:20:12,14", "::", "1:2:3:4", "-1:9999999999999999999:"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSnapshot(text)
		if err != nil {
			return
		}
		again, err := parseSnapshot(s.without(nil))
		require.NoError(t, err)
		require.Equal(t, s, again)
	})
}
