package webhook_test

import (
	"encoding/base64"
	"net/http"
	"strings"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/webhook"
)

// verify checks a request like a receiver that has one secret, with the public library.
func verify(t testing.TB, secret string, q request) error {
	hook, err := standardwebhooks.NewWebhook(secret)
	require.NoError(t, err)
	return hook.Verify(q.body, q.header)
}

func newSecret(fill string, n int) string {
	return "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat(fill, n)))
}

func TestSignatureVerifies(t *testing.T) {
	t.Parallel()
	for name, encoder := range map[string]publish.Encoder{
		"binary": nil, "structured": publish.CloudEvents("/accounts", publish.Structured), "json": publish.JSON(),
	} {
		r := newReceiver(t, nil)
		o := event("k")
		require.NoError(t, send(t, newPublisher(t, r.url, func(c *webhook.Config) { c.Encoder = encoder }), o), name)
		q := r.requests()[0]
		require.NoError(t, verify(t, secret, q), name)
		require.Equal(t, o.ID.String(), q.header.Get("webhook-id"), name)

		forged := request{header: q.header, body: append([]byte(" "), q.body...)}
		require.ErrorIs(t, verify(t, secret, forged), standardwebhooks.ErrNoMatchingSignature, name)
		forged = request{header: q.header.Clone(), body: q.body}
		forged.header.Set("webhook-id", event("k").ID.String())
		require.ErrorIs(t, verify(t, secret, forged), standardwebhooks.ErrNoMatchingSignature, name)
	}
}

// TestRotation: during a rotation, a receiver may have any of the current secrets.
func TestRotation(t *testing.T) {
	t.Parallel()
	current := []string{newSecret("new", 8), strings.TrimPrefix(newSecret("old", 20), "whsec_"), secret}
	r := newReceiver(t, nil)
	p := newPublisher(t, r.url, func(c *webhook.Config) {
		c.Endpoints = map[string]webhook.Endpoint{"crm": {URL: r.url, Secrets: current}}
	})
	require.NoError(t, send(t, p, event("")))
	q := r.requests()[0]
	for _, known := range current {
		require.NoError(t, verify(t, known, q))
	}
	require.Error(t, verify(t, newSecret("retired", 4), q))
	require.Len(t, strings.Fields(q.header.Get("webhook-signature")), 3)
}

func TestUnsigned(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	p := newPublisher(t, r.url, func(c *webhook.Config) {
		c.Endpoints = map[string]webhook.Endpoint{"crm": {URL: r.url, Unsigned: true}}
	})
	o := event("")
	o.Headers["Webhook-Signature"] = "v1,forged"
	require.NoError(t, send(t, p, o))
	header := r.requests()[0].header
	require.NotContains(t, header, "Webhook-Signature")
	require.Equal(t, o.ID.String(), header.Get("webhook-id"))
	require.Regexp(t, `^\d{10}$`, header.Get("webhook-timestamp"))

	r = newReceiver(t, status(http.StatusUnauthorized))
	p = newPublisher(t, r.url, func(c *webhook.Config) {
		c.Endpoints = map[string]webhook.Endpoint{"crm": {URL: r.url, Unsigned: true}}
	})
	require.ErrorContains(t, send(t, p, event("")),
		"replied 401 Unauthorized: the endpoint expects a signature or credentials: set Secrets or Headers")
}

// TestHeadersOfEvents: headers of an event cannot replace those of the publisher or break HTTP.
func TestHeadersOfEvents(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	p := newPublisher(t, strings.Replace(r.url, "http://", "http://user:pass@", 1), func(c *webhook.Config) {
		e := c.Endpoints["crm"]
		e.Headers = map[string]string{"x-both": "endpoint", "user-agent": "acme/1"}
		c.Endpoints["crm"] = e
	})
	o := event("k")
	o.Headers = map[string]string{
		"webhook-id": "forged", "WEBHOOK-TIMESTAMP": "1", "ce-id": "forged", "ce-extra": "forged", "content-type": "text/html",
		"content-encoding": "gzip", "content-length": "1", "host": "forged", "connection": "close", "Transfer-Encoding": "gzip",
		"authorization": "Bearer stolen", "cookie": "stolen=1", "x-both": "event", "x-own": "Zoë, 100%", "user-agent": "forged",
		"Expect": "100-continue", "x-tab": "a\tb",
	}
	require.NoError(t, send(t, p, o))
	q := r.requests()[0]
	require.NoError(t, verify(t, secret, q))
	user, password, _ := (&http.Request{Header: q.header}).BasicAuth()
	require.Equal(t, "user pass", user+" "+password)
	for name, want := range map[string]string{
		"webhook-id": o.ID.String(), "ce-id": o.ID.String(), "ce-extra": "", "content-type": "application/json", "content-encoding": "",
		"cookie": "", "connection": "", "x-both": "endpoint", "x-own": "Zoë, 100%", "user-agent": "acme/1", "expect": "", "x-tab": "a\tb",
		"idempotency-key": "",
	} {
		require.Equal(t, want, q.header.Get(name), name)
	}
}
