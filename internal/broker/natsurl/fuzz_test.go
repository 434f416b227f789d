package natsurl_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/broker/natsurl"
)

// FuzzWithoutCredentials: no part of a password is shown, however the list is written.
func FuzzWithoutCredentials(f *testing.F) {
	f.Add("nats://", "user", "@a:4222", ",tls://b")
	f.Add("", "u", "@a", "")
	f.Add("nats://", "u/x", "@h", "/a@b")
	f.Fuzz(func(t *testing.T, scheme, user, host, rest string) {
		const secret = "S3CRET"
		list := scheme + user + ":" + secret + host + rest
		shown := natsurl.WithoutCredentials(list)
		if !natsurl.Valid(list) {
			require.Equal(t, "[masked]", shown)
			return
		}
		for _, one := range natsurl.Servers(list) {
			if !strings.Contains(one, "://") {
				one = "nats://" + one
			}
			u, err := url.Parse(one)
			require.NoError(t, err)
			if password, _ := u.User.Password(); strings.Contains(password, secret) {
				require.NotContains(t, shown, secret)
			}
		}
	})
}
