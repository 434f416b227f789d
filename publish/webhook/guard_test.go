package webhook_test

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/publish/webhook"
)

// TestPrivateAddressesAreRefused: the publisher refuses private addresses when it connects, in any form in a URL.
func TestPrivateAddressesAreRefused(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	port := r.url[strings.LastIndex(r.url, ":"):]
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0", "127.1.2.3", "169.254.169.254", "10.0.0.1", "224.0.0.1"} {
		for _, scheme := range []string{"http://", "https://"} {
			p := newPublisher(t, scheme+host+port, func(c *webhook.Config) { c.AllowedNetworks, c.PrivateAddressTimeout = nil, -1 })
			err := send(t, p, event("k"))
			require.Equal(t, permanent, outcomeOf(err, 0), "%s: %v", host, err)
			require.ErrorContains(t, err, "is not a public address")
		}
	}
	require.Empty(t, r.requests())

	allowed := func(c *webhook.Config) { c.AllowedNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }
	require.NoError(t, send(t, newPublisher(t, r.url, allowed), event("k")))
}

// TestNameThatLeadsAstrayWaits: events for a host that resolves to a private address become dead letters only after a while.
func TestNameThatLeadsAstrayWaits(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	waits := newPublisher(t, r.url, func(c *webhook.Config) { c.AllowedNetworks = nil })
	err := send(t, waits, event("k"))
	require.Equal(t, unavailable, outcomeOf(err, 0), "%v", err)
	require.ErrorContains(t, err, "is not a public address")
	require.ErrorContains(t, err, "its events wait", "however long, by default")
	p := newPublisher(t, r.url, func(c *webhook.Config) {
		c.AllowedNetworks, c.PrivateAddressTimeout = nil, 50*time.Millisecond
	})
	require.Equal(t, unavailable, outcomeOf(send(t, p, event("k")), 0))
	require.Eventually(t, func() bool {
		got := outcomeOf(send(t, p, event("k")), 0)
		require.Contains(t, []outcome{unavailable, permanent}, got)
		return got == permanent
	}, time.Minute, 5*time.Millisecond)
	require.Empty(t, r.requests())
}

// TestConfigurationErrorsAreLoggedOncePerMinute: an event that is tried again and again does not fill the log. Each destination
// and cause has its own line.
func TestConfigurationErrorsAreLoggedOncePerMinute(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	var out bytes.Buffer
	p := newPublisher(t, r.url, func(c *webhook.Config) {
		c.AllowedNetworks, c.Logger = nil, slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	unknown := event("k")
	unknown.Destination = "nowhere"
	for range 5 {
		require.Error(t, send(t, p, event("k")))
		require.Error(t, send(t, p, unknown))
	}
	require.Equal(t, 2, strings.Count(out.String(), "level=WARN"), out.String())
	require.Equal(t, 8, strings.Count(out.String(), "level=DEBUG"), out.String())
}

// TestProxiesOfTheEnvironmentAreNotUsed: a proxy would look up names itself and bypass the check.
func TestProxiesOfTheEnvironmentAreNotUsed(t *testing.T) {
	proxy := newReceiver(t, nil)
	t.Setenv("HTTP_PROXY", proxy.url)
	t.Setenv("http_proxy", proxy.url)
	p := newPublisher(t, "http://169.254.169.254/", func(c *webhook.Config) { c.PrivateAddressTimeout = -1 })
	require.Equal(t, permanent, outcomeOf(send(t, p, event("k")), 0))
	require.Empty(t, proxy.requests())
}
