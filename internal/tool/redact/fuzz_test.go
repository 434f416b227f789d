package redact_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/tool/redact"
)

// FuzzMask: the password of a connection string is masked in any text around it.
func FuzzMask(f *testing.F) {
	f.Add("cannot connect to ", "user", "db.example.com:5432/app", ": refused")
	f.Add("\"", "u@x", "h/?a=b@c", "\" password=")
	f.Add("a://b", "", "", "://@")
	f.Fuzz(func(t *testing.T, before, user, host, after string) {
		const secret = "S3CRET"
		if strings.Contains(before+user+host+after, secret) {
			return
		}
		dsn := "postgres://" + url.UserPassword(user, secret).String() + "@" + host
		require.NotContains(t, redact.Mask(before+" "+dsn+" "+after), secret)
		require.NotContains(t, redact.MaskIn(before+dsn+after, dsn), secret)
		for _, setting := range []string{"host=h password=" + secret, "host=h password='" + secret + " x'", "PASSWORD = " + secret} {
			require.NotContains(t, redact.Mask(before+" "+setting+" "+after), secret)
		}
		require.NotContains(t, redact.MaskQuoted(before+`"`+secret+`"`+after, secret), secret)
	})
}
