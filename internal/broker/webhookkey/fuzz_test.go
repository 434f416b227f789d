package webhookkey_test

import (
	"encoding/base64"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/broker/webhookkey"
)

// FuzzDecode: a secret is a key of an allowed length, or is refused without being quoted.
func FuzzDecode(f *testing.F) {
	for _, secret := range []string{
		"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whpk_x", "whsec_", "whsec_whsec_AAAA", "whsec_MfKQ9r8G\nKYqrTwjUPD8ILPZIo2LaLaSw", "\xff",
	} {
		f.Add(secret)
	}
	f.Fuzz(func(t *testing.T, secret string) {
		key, err := webhookkey.Decode(secret)
		if err != nil {
			require.Nil(t, key)
			if len(secret) > 12 {
				require.NotContains(t, err.Error(), secret)
			}
			return
		}
		require.True(t, 24 <= len(key) && len(key) <= 64)
		again, err := webhookkey.Decode("whsec_" + base64.StdEncoding.EncodeToString(key))
		require.NoError(t, err)
		require.Equal(t, key, again)
	})
}
