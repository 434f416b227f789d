package nats_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume/nats"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// certificate returns the certificate of a server at 127.0.0.1, and the pool with its CA.
func certificate(t testing.TB) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return s.TLS.Certificates[0], roots
}

// TestTLS: TLS that does not work ends Run and Lag long before the StartTimeout, with an error that says what to check.
func TestTLS(t *testing.T) {
	t.Parallel()
	pool := database(t)
	cert, roots := certificate(t)
	secure := func(auth tls.ClientAuthType) func(*server.Options) {
		return func(o *server.Options) {
			o.TLS, o.TLSConfig = true, &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: auth}
		}
	}
	for name, test := range map[string]struct {
		server func(*server.Options)
		client natsgo.Option
		text   string
	}{
		"CA": {
			secure(tls.NoClientCert), nil,
			"no connection with TLS: nats: tls error: tls: failed to verify certificate: x509: certificate signed by unknown authority: " +
				"check the names in Config.URL, and nats.RootCAs or nats.Secure in Config.Options",
		},
		"name": {secure(tls.NoClientCert), natsgo.Secure(&tls.Config{RootCAs: roots, ServerName: "nats.net"}), "not nats.net: check the names in Config.URL"},
		"certificate of the client": {
			secure(tls.RequireAnyClientCert), natsgo.Secure(&tls.Config{RootCAs: roots}), "tls: certificate required: check nats.ClientCert in Config.Options",
		},
		"TLS at the client only": {
			func(*server.Options) {}, natsgo.Secure(&tls.Config{RootCAs: roots}),
			"nats: secure connection not available: check the port, and nats.Secure in Config.Options",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBroker(t, test.server)
			r := run(t, pool, &effects{}, b.config(func(c *nats.Config) {
				c.StartTimeout, c.Options = 10*pgtest.Patience, []natsgo.Option{test.client}
			}))
			err := r.ends(t)
			require.ErrorIs(t, err, nats.ErrTLS)
			require.ErrorContains(t, err, test.text)
			requireLagRefused(t, r, nats.ErrTLS)
		})
	}
	t.Run("one of two servers", func(t *testing.T) {
		t.Parallel()
		own, good, bad := database(t), newBroker(t), newBroker(t, secure(tls.NoClientCert))
		good.put(1, 1, "a")
		for range 3 { // the client begins with any of them
			r := run(t, own, &effects{}, good.config(func(c *nats.Config) { c.URL = bad.url("", "") + "," + c.URL }))
			settlesAt(t, own, 1)
			good.acknowledged("projection")
			_, err := r.Lag(t.Context())
			require.NoError(t, err)
			require.NoError(t, r.stop())
		}
		good.kill()
		r := run(t, own, &effects{}, good.config(func(c *nats.Config) { c.URL = bad.url("", "") + "," + c.URL }))
		select {
		case <-r.done:
			t.Error(r.err)
		case <-time.After(time.Second): // the other server is away for a moment
		}
		good.start()
		good.put(2, 2, "a")
		settlesAt(t, own, 2)
	})
}

// requireLagRefused fails unless Lag ends by itself.
func requireLagRefused(t *testing.T, r *running, want error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	_, err := r.Lag(ctx)
	require.NoError(t, ctx.Err(), "Lag did not end by itself")
	require.ErrorIs(t, err, want)
	require.ErrorContains(t, err, "read lag of USERS/projection at 127.0.0.1:")
}

// TestRefusedLater: credentials that are refused, or TLS that does not work, after a restart of the server end Run after the
// StartTimeout. A server that is away does not.
func TestRefusedLater(t *testing.T) {
	t.Parallel()
	cert, roots := certificate(t)
	for name, test := range map[string]struct {
		change func(o *server.Options)
		want   error
	}{
		"credentials": {func(o *server.Options) { o.Users[0].Password = "new" }, nats.ErrRefused},
		"TLS":         {func(o *server.Options) { o.TLSConfig.ClientAuth = tls.RequireAnyClientCert }, nats.ErrTLS},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := database(t) // and with it a lock, which one Run holds
			b := newBroker(t, func(o *server.Options) {
				o.Users = []*server.User{{Username: "me", Password: "old"}}
				o.TLS, o.TLSConfig = true, &tls.Config{Certificates: []tls.Certificate{cert}}
			})
			r := run(t, pool, &effects{}, b.config(shortly, func(c *nats.Config) {
				c.URL = b.url("me", "old")
				c.Options = []natsgo.Option{natsgo.Secure(&tls.Config{RootCAs: roots})}
			}))
			b.put(1, 1, "a")
			settlesAt(t, pool, 1) // so it has begun to read
			b.kill()
			select {
			case <-r.done:
				t.Fatal(r.err)
			case <-time.After(5 * time.Second): // more than the StartTimeout
			}
			test.change(&b.opts)
			b.start()
			require.ErrorIs(t, r.ends(t), test.want)
		})
	}
}
