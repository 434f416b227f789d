package outbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
)

// FuzzRate: a rate is within its bounds and is written as it is read, or is refused.
func FuzzRate(f *testing.F) {
	for _, text := range []string{"10/1m", "1/1s", "2147483647/24h", "0/1s", "1/", "/1s", "1/1s/1s", "+1/1m0s", "1/0.0000000001h", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := outbox.ParseRate(text)
		if err != nil {
			return
		}
		require.True(t, r == outbox.Rate{} || 1 <= r.Events && r.Events <= 1<<31-1 && time.Second <= r.Period && r.Period <= 24*time.Hour, "%+v", r)
		var again outbox.Rate
		require.NoError(t, again.UnmarshalText([]byte(r.String())))
		require.Equal(t, r, again)
	})
}
