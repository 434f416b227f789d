package webhook_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/webhook"
)

var _ publish.Publisher = (*webhook.Publisher)(nil)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	good := webhook.Endpoint{URL: "https://example.com/hook", Secrets: []string{secret}}
	with := func(change func(*webhook.Endpoint)) webhook.Config {
		e := good
		change(&e)
		return webhook.Config{Endpoints: map[string]webhook.Endpoint{"ok": good, "crm": e}}
	}
	at := func(url string) webhook.Config { return with(func(e *webhook.Endpoint) { e.URL = url }) }
	signedBy := func(secrets ...string) webhook.Config {
		return with(func(e *webhook.Endpoint) { e.Secrets = secrets })
	}
	sending := func(headers map[string]string) webhook.Config {
		return with(func(e *webhook.Endpoint) { e.Headers = headers })
	}
	endpoints := map[string]webhook.Endpoint{"crm": good}
	for want, config := range map[string]webhook.Config{
		"field Endpoints is empty":                                            {},
		"field Timeout: -1s is negative":                                      {Endpoints: endpoints, Timeout: -time.Second},
		"field Concurrency: -1 is negative":                                   {Endpoints: endpoints, Concurrency: -1},
		"field MaxRetryAfter: -1s is negative":                                {Endpoints: endpoints, MaxRetryAfter: -time.Second},
		"field AllowedNetworks: number 2 is not an IPv4 or IPv6 network":      {Endpoints: endpoints, AllowedNetworks: []netip.Prefix{local[0], {}}},
		"field AllowedNetworks: number 1 is not an IPv4 or IPv6 network":      {Endpoints: endpoints, AllowedNetworks: []netip.Prefix{netip.MustParsePrefix("::ffff:10.0.0.0/104")}},
		`endpoint "crm": field URL is neither http nor https`:                 at("ftp://user:hunter2@example.com"),
		`endpoint "crm": field URL is neither http nor https `:                at(""),
		`endpoint "crm": field URL has no host`:                               at("https:///hunter2"),
		`endpoint "crm": field URL has no host `:                              at("https:hunter2"),
		`endpoint "crm": field URL is not a URL`:                              at("https://user:hunter2@exa mple.com/"),
		`endpoint "crm": field Secrets is empty`:                              signedBy(),
		`endpoint "crm": field Secrets is not empty, but Unsigned is set`:     with(func(e *webhook.Endpoint) { e.Unsigned = true }),
		`endpoint "crm": field Secrets: number 2 is not base64`:               signedBy(secret, "whsec_hunter2!"),
		`endpoint "crm": field Secrets: number 1 is empty`:                    signedBy(""),
		`endpoint "crm": field Secrets: number 1 has 23 bytes`:                signedBy(newSecret("x", 23)),
		`endpoint "crm": field Secrets: number 1 has 65 bytes`:                signedBy(newSecret("x", 65)),
		`endpoint "crm": field Headers: HTTP cannot send "x-a" or its value`:  sending(map[string]string{"x-a": "hunter2\n"}),
		`endpoint "crm": field Headers: HTTP cannot send "x a" or its value`:  sending(map[string]string{"x a": "hunter2"}),
		`endpoint "crm": field Headers: "webhook-id" is set by the publisher`: sending(map[string]string{"webhook-id": "hunter2"}),
		`endpoint "crm": field Headers: "Host" is set by the publisher`:       sending(map[string]string{"Host": "hunter2"}),
		`endpoint "crm": field Headers: "authorization" is set twice`: with(func(e *webhook.Endpoint) {
			e.URL, e.Headers = "https://u:hunter2@example.com", map[string]string{"authorization": "hunter2"}
		}),
	} {
		_, err := webhook.New(config)
		require.ErrorContains(t, err, "create webhook publisher: "+strings.TrimSpace(want))
		require.NotContains(t, err.Error(), "hunter2")
	}
	for _, config := range []webhook.Config{
		{Endpoints: endpoints}, signedBy(newSecret("x", 24)), signedBy(newSecret("x", 64)), at("http://[2606:4700::1]:8080"),
	} {
		p, err := webhook.New(config)
		require.NoError(t, err)
		p.Close()
	}
}

// TestEndpointsShowNoSecrets: a configuration shows no secrets, printed or logged in any way.
func TestEndpointsShowNoSecrets(t *testing.T) {
	t.Parallel()
	e := webhook.Endpoint{
		URL:     "https://user:hunter2@example.com:8443/services/hunter2?token=hunter2#hunter2",
		Secrets: []string{"hunter2", "hunter2"}, Headers: map[string]string{"authorization": "hunter2"},
	}
	config := webhook.Config{Endpoints: map[string]webhook.Endpoint{"crm": e}}
	var b strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x"} {
		fmt.Fprintf(&b, verb, e)
		fmt.Fprintf(&b, verb, &e)
		fmt.Fprintf(&b, verb, config)
	}
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "endpoint", e, "endpoints", config.Endpoints, "config", config)
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "endpoint", e, "endpoints", config.Endpoints)
	encoded, err := json.Marshal(e)
	require.NoError(t, err)
	b.Write(encoded)
	require.NotContains(t, b.String(), "hunter2")
	require.NotContains(t, b.String(), fmt.Sprintf("%x", "hunter2"))
	require.Contains(t, b.String(), "{URL:https://example.com:8443/[masked] Secrets:2 Headers:1}")
	require.Equal(t, "{URL:[masked] Secrets:0 Headers:0}", fmt.Sprint(webhook.Endpoint{URL: "hunter2"}))
}
