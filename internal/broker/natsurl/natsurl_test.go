package natsurl_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/broker/natsurl"
)

func TestWithoutCredentials(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{
		"nats://u:S3CRET@a:4222, tls://b:4222": "a:4222,b:4222", "a": "a", "u:S3CRET@a:4222": "a:4222",
		"nats://u:S3/CRET@a:4222": "[masked]", "": "[masked]", "nats://": "[masked]", "nats://u:S3%CRET@a": "[masked]",
	} {
		require.Equal(t, want, natsurl.WithoutCredentials(list), list)
		require.Equal(t, want != "[masked]", natsurl.Valid(list), list)
	}
}
