package errclass

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

func FuzzErrorText(f *testing.F) {
	for _, seed := range []string{"", "x", "\x00", "\xff", "a\xc3", "€"} {
		f.Add(seed, 1)
		f.Add(seed, 700)
	}
	pool := pgtest.Database(f)
	isText := func(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }
	f.Fuzz(func(t *testing.T, text string, times int) {
		if times < 0 || times > 4096 || len(text)*times > 1<<20 {
			return
		}
		var long []byte
		for range times {
			long = append(long, text...)
		}
		kept := Text(string(long))
		require.LessOrEqual(t, len(kept), MaxBytes)
		require.True(t, isText(kept))
		if isText(string(long)) {
			require.Equal(t, string(long[:len(kept)]), kept)
			require.Less(t, min(len(long), MaxBytes)-len(kept), 4)
		}
		var back string
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT $1::text", kept).Scan(&back))
		require.Equal(t, kept, back)
	})
}
