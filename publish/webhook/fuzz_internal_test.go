package webhook

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzRetryAfter: what an endpoint asks for is a positive time that a Duration can hold, or nothing.
func FuzzRetryAfter(f *testing.F) {
	for _, value := range []string{"120", "-1", "99999999999999999999", "Wed, 21 Oct 2099 07:28:00 GMT", "Mon, 01 Jan 0001 00:00:00 GMT", " 5 ", "1e3", ""} {
		f.Add(value, "")
		f.Add(value, "Wed, 21 Oct 2015 07:28:00 GMT")
	}
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, value, date string) {
		delay, ok := retryAfter(http.Header{"Retry-After": {value}, "Date": {date}}, now)
		if ok {
			require.Positive(t, delay)
		}
	})
}

// FuzzEndpoint: neither an error nor what is printed of an endpoint has its password, its path or a secret.
func FuzzEndpoint(f *testing.F) {
	f.Add("https://user:", "@example.com/hook", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	f.Add("https://example.com/", "?token=x", "")
	f.Add("http://example.com:80/x", "@h", "whsec_x")
	f.Add("https://a b/", "", "whsec_")
	f.Fuzz(func(t *testing.T, before, after, more string) {
		const hidden = "S3CRET"
		e := Endpoint{URL: before + hidden + after, Secrets: []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", hidden + more}, Headers: map[string]string{"X-Key": hidden}}
		if _, err := newEndpoint("crm", e); err != nil {
			require.NotContains(t, err.Error(), hidden)
		}
		shown := fmt.Sprintf("%v %+v %#v %s", e, e, e, e.LogValue())
		if u, err := url.Parse(e.URL); err == nil && strings.Contains(u.Scheme+u.Host, strings.ToLower(hidden)) || err == nil && strings.Contains(u.Host, hidden) {
			return // it is a part of the address
		}
		require.NotContains(t, shown, hidden)
	})
}
