package redis_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume/redis"
	"github.com/outboxgen/outboxgen/internal/testing/brokertest"
	"github.com/outboxgen/outboxgen/internal/testing/freeport"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// works are the rights that docs/run/consumers.md lists.
var works = []any{
	"ACL", "SETUSER", "works", "reset", "on", ">S3CRET", "~" + users, "+multi", "+exec", "+xinfo", "+xreadgroup", "+xread",
	"+xrange", "+xpending", "+xack",
}

func (b *broker) user(name, password string) func(*redis.Config) {
	return func(c *redis.Config) { c.URL = "redis://" + name + ":" + password + "@" + b.Addr() }
}

// TestRefused: wrong credentials and each missing right are errors that say what is refused, and show no password. They end Run
// long before the StartTimeout.
func TestRefused(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	b.put(1, 3, "a")
	patient := func(c *redis.Config) { c.StartTimeout = 10 * pgtest.Patience }
	b.do("CONFIG", "SET", "requirepass", "S3CRET")
	for name, test := range map[string]struct {
		acl  []any
		url  string
		want string
	}{
		"no password":     {url: "redis://" + b.Addr(), want: "NOAUTH"},
		"password":        {url: "redis://:S3CRETS@" + b.Addr(), want: "WRONGPASS"},
		"user":            {url: "redis://nobody:S3CRET@" + b.Addr(), want: "WRONGPASS"},
		"database":        {url: "redis://:S3CRET@" + b.Addr() + "/99", want: "ERR DB index is out of range"},
		"right to stream": {acl: []any{"resetkeys", "~orders"}, want: "NOPERM"},
		"XGROUP":          {acl: []any{"-xgroup"}, want: "NOPERM"},
		"XINFO":           {acl: []any{"-xinfo"}, want: "NOPERM"},
		"XREADGROUP":      {acl: []any{"-xreadgroup"}, want: "NOPERM"},
		"XREAD":           {acl: []any{"-xread"}, want: "NOPERM"},
		"XRANGE":          {acl: []any{"-xrange"}, want: "NOPERM"},
		"XPENDING":        {acl: []any{"-xpending"}, want: "NOPERM"},
		"XACK":            {acl: []any{"-xack"}, want: "NOPERM"},
		"MULTI":           {acl: []any{"-multi"}, want: "NOPERM"},
		"EXEC":            {acl: []any{"-exec"}, want: "EXECABORT Transaction discarded because of: NOPERM"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.acl != nil {
				user := "without-" + name[:4]
				if name == "XREADGROUP" {
					user = "without-group"
				}
				args := append([]any{}, works...)
				args[2] = user
				admin := goredis.NewClient(&goredis.Options{Addr: b.Addr(), Password: "S3CRET"})
				defer func() { _ = admin.Close() }()
				require.NoError(t, admin.Do(t.Context(), append(append(args, "+xgroup"), test.acl...)...).Err())
				test.url = "redis://" + user + ":S3CRET@" + b.Addr()
			}
			var log logs
			r := run(t, database(t), &effects{}, b.config(patient, log.to, func(c *redis.Config) {
				c.URL, c.Group = test.url, name
			}))
			err := r.ends(t)
			require.ErrorIs(t, err, redis.ErrRefused)
			require.ErrorContains(t, err, "consume users/"+name+": ask "+b.Addr()+": the server refuses access: "+test.want)
			require.NotContains(t, err.Error()+log.String(), "S3CRET")
			if test.acl == nil {
				_, err = r.Lag(t.Context())
				require.ErrorIs(t, err, redis.ErrRefused)
			}
		})
	}
}

// TestRights: the rights that docs/run/consumers.md lists suffice.
func TestRights(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	b.put(1, 20, "a")
	b.do(append(works, "+xgroup|create")...)
	for i := range 2 {
		var log logs
		r := run(t, pool, &effects{}, b.config(log.to, b.user("works", "S3CRET")))
		settlesAt(t, pool, 20*(i+1))
		b.acknowledged(users)
		_, err := r.Lag(t.Context())
		require.NoError(t, err)
		require.NoError(t, r.stop())
		require.NotContains(t, log.String(), "level=WARN")
		b.put(21, 40, "a")
		b.do(works...) // the group exists
	}
	requireSteps(t, pool, 40, "a")
}

// TestRefusedLater: credentials that are refused after a restart end Run after the StartTimeout.
func TestRefusedLater(t *testing.T) {
	t.Parallel()
	b, pool := newBroker(t), database(t)
	b.do(append(works, "+xgroup|create")...)
	r := run(t, pool, &effects{}, b.config(shortly, b.user("works", "S3CRET")))
	b.put(1, 1, "a")
	settlesAt(t, pool, 1)
	began := time.Now()
	b.do("ACL", "SETUSER", "works", "resetpass", ">new")
	b.do("CLIENT", "KILL", "USER", "works")
	require.ErrorIs(t, r.ends(t), redis.ErrRefused)
	require.Greater(t, time.Since(began), 2*time.Second)
}

// certificate writes a certificate of 127.0.0.1 that is its own CA, and returns its pool.
func certificate(t testing.TB, dir string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	for file, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: private},
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600))
	}
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	return roots
}

// TestTLS: TLS that does not work ends Run long before the StartTimeout, with an error that says what to check.
func TestTLS(t *testing.T) {
	t.Parallel()
	pool, dir := database(t), t.TempDir()
	roots := certificate(t, dir)
	b := newBroker(t)
	server := func(clients string) string {
		s := brokertest.StartRedis(t)
		client := goredis.NewClient(&goredis.Options{Addr: s.Addr()})
		defer func() { _ = client.Close() }()
		require.NoError(t, client.XGroupCreateMkStream(t.Context(), users, "other", "0").Err())
		port := freePort(t)
		for _, pair := range [][2]string{
			{"tls-auth-clients", clients}, {"tls-ca-cert-file", filepath.Join(dir, "cert.pem")},
			{"tls-key-file", filepath.Join(dir, "key.pem")}, {"tls-cert-file", filepath.Join(dir, "cert.pem")},
			{"tls-port", strconv.Itoa(port)},
		} {
			require.NoError(t, client.ConfigSet(t.Context(), pair[0], pair[1]).Err(), pair[0])
		}
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	open, strict := server("no"), server("yes")
	with := func(addr string, cfg *tls.Config) func(*redis.Config) {
		return func(c *redis.Config) {
			c.URL, c.Options = "", &goredis.UniversalOptions{Addrs: []string{addr}, TLSConfig: cfg}
		}
	}
	url := func(url string) func(*redis.Config) { return func(c *redis.Config) { c.URL = url } }
	for name, test := range map[string]struct {
		change func(*redis.Config)
		text   string
	}{
		"CA":                        {url("rediss://" + open), "signed by unknown authority: check the names in Config.URL"},
		"name":                      {with(open, &tls.Config{RootCAs: roots, ServerName: "a.com"}), "check the names in Config"},
		"certificate of the client": {with(strict, &tls.Config{RootCAs: roots}), "check the client's certificate in TLSConfig"},
		"TLS at the server only":    {url("redis://" + open), "check the port, and whether it wants TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run(t, pool, &effects{}, b.config(func(c *redis.Config) { c.StartTimeout = 10 * pgtest.Patience }, test.change))
			err := r.ends(t)
			require.ErrorIs(t, err, redis.ErrTLS)
			require.ErrorContains(t, err, test.text)
		})
	}
	t.Run("TLS at the client only", func(t *testing.T) {
		t.Parallel()
		pgtest.Slow(t) // the server waits for the end of a line
		err := run(t, pool, &effects{}, b.config(shortly, func(c *redis.Config) { c.URL = "rediss://" + b.Addr() })).ends(t)
		require.ErrorIs(t, err, redis.ErrUnreachable)
		require.ErrorContains(t, err, "check the address, and whether the port has TLS")
	})
	t.Run("works", func(t *testing.T) {
		t.Parallel()
		r := run(t, pool, &effects{}, b.config(with(open, &tls.Config{RootCAs: roots})))
		pgtest.Eventually(t, func() bool { _, err := r.Lag(t.Context()); return err == nil })
	})
}

func freePort(t testing.TB) int {
	t.Helper()
	port, err := freeport.Find()
	require.NoError(t, err)
	return port
}
