package webhookkey_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/broker/webhookkey"
)

func TestDecode(t *testing.T) {
	t.Parallel()
	const make = "; make one with: openssl rand -base64 32"
	for secret, want := range map[string]string{
		"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw": "",
		"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n":     "", // read from a file
		"whsec_" + strings.Repeat("A", 84):       "",
		"":                                       "is empty: set it, for example the environment variable that it comes from" + make,
		"whsec_\n":                               "is empty: set it, for example the environment variable that it comes from" + make,
		"whsec_" + strings.Repeat("A", 28):       "has 21 bytes in base64: use 24 to 64 bytes" + make,
		"whsec_" + strings.Repeat("A", 88):       "has 66 bytes in base64: use 24 to 64 bytes" + make,
		"whsec_S3CRET!":                          "is not base64: make one with: openssl rand -base64 32",
		"whpk_" + strings.Repeat("S3CR", 8):      "is an asymmetric key, which is not supported: use a secret that begins with whsec_",
	} {
		key, err := webhookkey.Decode(secret)
		if want == "" {
			require.NoError(t, err)
			require.GreaterOrEqual(t, len(key), 24)
			continue
		}
		require.EqualError(t, err, want)
	}
}
