package kafka_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/outboxgen/outboxgen/consume/kafka"
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

// TestRefusedConnections: credentials that are refused and TLS that does not work end Run without a wait, with an error that
// names the broker and what to check.
func TestRefusedConnections(t *testing.T) {
	t.Parallel()
	pool := database(t)
	cert, roots := certificate(t)
	auth := func(password string) kgo.Opt { return kgo.SASL(plain.Auth{User: "me", Pass: password}.AsMechanism()) }
	plainSASL := []kfake.Opt{kfake.EnableSASL(), kfake.Superuser("PLAIN", "me", "right")}
	fault := func(key kmsg.Key, code *kerr.Error) func(*cluster) {
		return func(c *cluster) { c.Fault(kfake.Fault{Keys: []kmsg.Key{key}, TopLevel: true, Err: code, Count: -1}) }
	}
	for name, test := range map[string]struct {
		server  []kfake.Opt
		prepare func(c *cluster)
		client  kgo.Opt
		want    error
		text    string
	}{
		"password": {
			plainSASL, fault(kmsg.SASLAuthenticate, kerr.SaslAuthenticationFailed), auth("S3CRET"), kafka.ErrRefused,
			"the cluster refuses access: broker ADDRESS, SASL PLAIN: SASL_AUTHENTICATION_FAILED: SASL Authentication failed.: " +
				"check user and password: kgo.SASL in Config.Options",
		},
		"password, hung up": {
			plainSASL, nil, auth("S3CRET"), kafka.ErrRefused,
			"the cluster refuses access: broker ADDRESS, SASL PLAIN: it closes each connection without an answer: " +
				"check user, password and mechanism: kgo.SASL in Config.Options",
		},
		"mechanism": {
			plainSASL, fault(kmsg.SASLHandshake, kerr.UnsupportedSaslMechanism), kgo.SASL(scram.Auth{User: "me", Pass: "S3CRET"}.AsSha512Mechanism()), kafka.ErrRefused,
			"SASL SCRAM-SHA-512: UNSUPPORTED_SASL_MECHANISM: ",
		},
		"no SASL at the broker": {
			plainSASL, fault(kmsg.SASLHandshake, kerr.IllegalSaslState), auth("S3CRET"), kafka.ErrRefused, "check whether this port wants SASL: ",
		},
		"no SASL at the client": {
			plainSASL, nil, nil, kafka.ErrRefused,
			"broker ADDRESS, without SASL: it closes each connection without an answer: check whether it wants SASL: kgo.SASL in Config.Options",
		},
		"CA": {
			[]kfake.Opt{kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert}})}, nil, kgo.DialTLSConfig(&tls.Config{RootCAs: x509.NewCertPool()}), kafka.ErrTLS,
			"no connection with TLS: broker ADDRESS: unable to dial: tls: failed to verify certificate: x509: certificate signed by unknown authority: " +
				"check RootCAs in the configuration of kgo.DialTLSConfig",
		},
		"name": {
			[]kfake.Opt{kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert}})}, nil, kgo.DialTLSConfig(&tls.Config{RootCAs: roots, ServerName: "kafka.net"}), kafka.ErrTLS,
			"not kafka.net: check Config.Brokers, and ServerName in the configuration of kgo.DialTLSConfig",
		},
		"certificate of the client": {
			[]kfake.Opt{kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert})}, nil,
			kgo.DialTLSConfig(&tls.Config{RootCAs: roots}), kafka.ErrTLS, "check the client's certificate in the configuration of kgo.DialTLSConfig",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1, test.server...)
			if test.prepare != nil {
				test.prepare(c)
			}
			requireRefused(t, pool, c.config(), test.client, test.want, test.text)
		})
	}
	answers := func(bytes string, option kgo.Opt, text string) func(t *testing.T) {
		return func(t *testing.T) {
			t.Parallel()
			cfg := newCluster(t, 1).config()
			cfg.Brokers = []string{answering(t, bytes)}
			requireRefused(t, pool, cfg, option, kafka.ErrTLS, text)
		}
	}
	const check = "check the port, and whether it wants TLS: kgo.DialTLSConfig in Config.Options"
	t.Run("TLS at the broker only", answers(alert, nil, check))
	t.Run("another kind of server", answers("-ERR unknown command\r\n", nil, check))
	t.Run("TLS at the client only", answers("HTTP/1.1 400 Bad Request\r\n\r\n", kgo.DialTLSConfig(&tls.Config{RootCAs: roots}),
		"tls: first record does not look like a TLS handshake: check the port: it does not speak TLS"))
}

// alert is what a port with TLS answers to a client without.
const alert = "\x15\x03\x03\x00\x02\x02\x46"

// answering returns the address of a server that answers to everything with text.
func answering(t testing.TB, text string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1))
			_, _ = conn.Write([]byte(text))
			_, _ = conn.Read(make([]byte, 64<<10)) // unread bytes would reset the connection
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	return l.Addr().String()
}

// requireRefused fails unless Run and Lag end by themselves long before the StartTimeout.
func requireRefused(t *testing.T, pool *pgxpool.Pool, cfg kafka.Config, option kgo.Opt, want error, text string) {
	t.Helper()
	cfg.StartTimeout = 10 * patience
	if option != nil {
		cfg.Options = append(cfg.Options, option)
	}
	text = strings.ReplaceAll(text, "ADDRESS", cfg.Brokers[0])
	r := receiver(t, pool, &effects{}, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, lag := r.Lag(ctx)
	require.ErrorContains(t, lag, "read lag of group counts: ")
	require.NoError(t, ctx.Err(), "Lag did not end by itself")
	err := run(t, r)
	require.ErrorIs(t, err, want)
	require.NotErrorIs(t, err, kafka.ErrUnreachable)
	require.ErrorContains(t, err, text)
	require.NotContains(t, err.Error()+lag.Error(), "S3CRET")
}

// TestOneBadBroker: a broker with a wrong certificate does not keep a client from another one.
func TestOneBadBroker(t *testing.T) {
	t.Parallel()
	pool, c := database(t), newCluster(t, 1)
	c.produce(record("a", 1))
	cfg := c.config()
	cfg.Brokers = append([]string{answering(t, alert)}, cfg.Brokers...)
	for range 3 { // a client begins with any of them
		r := receiver(t, pool, &effects{}, cfg)
		stop := start(t, r)
		awaitCaughtUp(t, r)
		require.NoError(t, stop())
	}
	requireCounted(t, pool, 1, 1)
}

// TestRefusedLater: credentials that are refused while Run consumes end it, after the StartTimeout at the latest. Brokers that
// are away do not.
func TestRefusedLater(t *testing.T) {
	t.Parallel()
	pool := database(t)
	c := newCluster(t, 1, kfake.EnableSASL(), kfake.Superuser("PLAIN", "me", "right"), kfake.DataDir(t.TempDir()))
	option := kgo.SASL(plain.Auth{User: "me", Pass: "right"}.AsMechanism())
	c.login = []kgo.Opt{option}
	cfg := c.config()
	cfg.Options, cfg.StartTimeout = append(cfg.Options, option), 2*time.Second
	r := receiver(t, pool, &effects{}, cfg)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(t.Context()) }()
	c.produce(record("a", 1))
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM effects")
	c.Close()
	<-time.After(3 * cfg.StartTimeout)
	select {
	case err := <-ended:
		require.NoError(t, err, "Run has ended while the brokers were away")
	default:
	}
	c.start()
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.SASLAuthenticate}, TopLevel: true, Err: kerr.SaslAuthenticationFailed, Count: -1})
	c.cut()
	require.ErrorIs(t, pgtest.Receive(t, ended, "the end of Run"), kafka.ErrRefused)
}
