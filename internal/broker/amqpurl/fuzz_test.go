package amqpurl_test

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/broker/amqpurl"
)

// FuzzWithoutCredentials: no part of a password is shown, however the list is written.
func FuzzWithoutCredentials(f *testing.F) {
	f.Add("amqp://", "user", "@a:5672/v", ",amqps://b")
	f.Add("amqp://", "u/x", "@h", "")
	f.Add("", "u", "@", "?heartbeat=1")
	f.Fuzz(func(t *testing.T, scheme, user, host, rest string) {
		const secret = "S3CRET"
		for _, list := range []string{
			scheme + user + ":" + secret + host + rest, scheme + url.UserPassword(user, secret).String() + host + rest,
		} {
			shown := amqpurl.WithoutCredentials(list)
			if err := amqpurl.Check(list); err != nil {
				require.Equal(t, "[masked]", shown)
				require.NotContains(t, err.Error(), secret)
				continue
			}
			for _, one := range amqpurl.Servers(list) {
				u, err := url.Parse(one)
				require.NoError(t, err)
				if password, _ := u.User.Password(); password == secret {
					require.NotContains(t, shown, secret)
				}
			}
		}
	})
}
