package sqltx

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzDecodeUUIDs: an array of uuids comes back as it was written, and another text is an error.
func FuzzDecodeUUIDs(f *testing.F) {
	for _, text := range []string{"{}", "{7f000001-89ab-4cde-8f01-23456789abcd}", "{NULL}", "{a,b}", "{{}}", "{,}", "7f000001-89ab-4cde-8f01-23456789abcd"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ids, err := decodeUUIDs(text)
		if err != nil {
			return
		}
		parts := make([]string, 0, len(ids))
		for _, id := range ids {
			require.True(t, id.Valid)
			parts = append(parts, id.String())
		}
		again, err := decodeUUIDs("{" + strings.Join(parts, ",") + "}")
		require.NoError(t, err)
		require.Equal(t, ids, again)
	})
}
