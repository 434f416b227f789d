package amqpurl_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/broker/amqpurl"
)

func TestWithoutCredentials(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{
		"amqp://u:S3CRET@a:5672/v, amqps://b:5671": "a:5672,b:5671", "amqp://a": "a", "amqp://u:S3/CRET@a:5672": "[masked]",
		"": "[masked]", "a:5672": "[masked]", "http://u:S3CRET@a": "[masked]", "amqp://u:S3%CRET@a": "[masked]", "amqp://": "[masked]",
		"amqp://a?heartbeat=3": "[masked]", "amqp://a b": "[masked]",
	} {
		require.Equal(t, want, amqpurl.WithoutCredentials(list), list)
		err := amqpurl.Check(list)
		require.Equal(t, want == "[masked]", err != nil, list)
		if err != nil {
			require.NotContains(t, err.Error(), "S3")
		}
	}
	require.Equal(t, []string{"amqp://a", "amqp://b"}, amqpurl.Servers("amqp://a, amqp://b"))
}
