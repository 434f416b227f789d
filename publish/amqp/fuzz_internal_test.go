package amqp

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzAddress: a destination is an exchange or a queue whose names AMQP can carry, or is refused.
func FuzzAddress(f *testing.F) {
	for _, text := range []string{"/exchanges/orders/paid.eu", "/exchanges/orders", "/queues/mail", "/queues/a%2Fb", "/queues/", "/exchanges//x", "/queues/%zz", "/queues/a/b", "queues/a"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := parseAddress(text)
		if err != nil {
			require.Less(t, len(err.Error()), 4*len(text)+200)
			return
		}
		require.True(t, len(a.exchange) <= maxShort && len(a.key) <= maxShort)
		require.NotEmpty(t, a.exchange+a.key)
	})
}
