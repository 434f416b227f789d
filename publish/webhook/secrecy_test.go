package webhook_test

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/publish/webhook"
)

// syncBuffer is a bytes.Buffer that is safe for concurrent use.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestNothingSecretIsTold: if an endpoint sends a request back, no error and no log has anything of it.
func TestNothingSecretIsTold(t *testing.T) {
	t.Parallel()
	const private = "hunter2"
	echo := private + " " + secret + " " + strings.TrimPrefix(secret, "whsec_")
	answers := map[string]http.HandlerFunc{
		"status line":  raw("HTTP/1.1 500 " + echo + "\r\n\r\n"),
		"bad status":   raw("HTTP/1.1 " + echo + "\r\n\r\n"),
		"bad protocol": raw(echo + "\r\n\r\n"),
		"bad header":   raw("HTTP/1.1 200 OK\r\n" + echo + "\r\n\r\n"),
		"bad length":   raw("HTTP/1.1 200 OK\r\nContent-Length: " + echo + "\r\n\r\n"),
		"bad encoding": raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: " + echo + "\r\n\r\n"),
		"location":     status(302, "Location", "http://example.com/"+private),
		"retry-after":  status(429, "Retry-After", private),
		"hanging":      hang,
		"body": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(echo))
		},
	}
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var logged syncBuffer
			r := newReceiver(t, answer)
			url := strings.Replace(r.url, "http://", "http://"+private+":"+private+"@", 1) + "/" + private + "?token=" + private
			p := newPublisher(t, url, func(c *webhook.Config) {
				c.Timeout = 300 * time.Millisecond
				c.Logger = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
				e := c.Endpoints["crm"]
				e.Headers = map[string]string{"x-api-key": private}
				c.Endpoints["crm"] = e
			})
			o := event("k")
			o.Payload = []byte(`{"password": "` + private + `"}`)
			o.Headers = map[string]string{"x-token": private}
			err := send(t, p, o)
			if name == "bad encoding" || name == "bad length" {
				require.Error(t, err)
			}
			r.stop()
			errs := []error{err, send(t, p, o)}
			o.Headers["x-bad"] = private + "\n"
			errs = append(errs, send(t, p, o))
			told := fmt.Sprintf("%v %+v %#v", errs, errs, errs) + logged.String()
			require.Contains(t, logged.String(), "event_id="+o.ID.String())
			for _, word := range []string{private, secret, strings.TrimPrefix(secret, "whsec_"), "aHVudGVyMg"} {
				require.NotContains(t, told, word)
			}
		})
	}
}

// TestNoVerbTellsSecrets: no verb, log, JSON or error of New shows secrets of a type that has an endpoint.
func TestNoVerbTellsSecrets(t *testing.T) {
	t.Parallel()
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	require.NoError(t, err)
	var told bytes.Buffer
	tell := func(values ...any) {
		for _, v := range values {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
				fmt.Fprintf(&told, verb+"\n", v)
			}
			for _, handler := range []slog.Handler{slog.NewTextHandler(&told, nil), slog.NewJSONHandler(&told, nil)} {
				slog.New(handler).Info("told", "value", v)
			}
			text, err := json.Marshal(v)
			require.NoError(t, err)
			told.Write(text)
		}
	}
	good := webhook.Endpoint{
		URL: "https://hunter2:hunter2@example.com/hunter2?key=hunter2", Secrets: []string{secret}, Headers: map[string]string{"x-key": "hunter2"},
	}
	config := webhook.Config{
		Endpoints: map[string]webhook.Endpoint{"crm": good}, Logger: quiet(),
		TLS: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{[]byte("hunter2")}, PrivateKey: "hunter2"}}},
	}
	p, err := webhook.New(config)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	tell(good, &good, config, &config, config.Endpoints, p, []*webhook.Publisher{p})
	require.Contains(t, told.String(), "webhook.Publisher(map[crm:example.com])")
	for _, change := range []func(*webhook.Endpoint){
		func(e *webhook.Endpoint) { e.URL = "https://me:hunter2@example.com:port/" },
		func(e *webhook.Endpoint) { e.URL = "https://me:hunter2%@example.com/" },
		func(e *webhook.Endpoint) { e.URL = "https://me:hun/ter2@example.com/" },
		func(e *webhook.Endpoint) { e.URL = "https://me:12/hunter2@example.com/" },
		func(e *webhook.Endpoint) { e.URL = "ftp://me:hunter2@example.com/" },
		func(e *webhook.Endpoint) { e.URL = "https:///hunter2" },
		func(e *webhook.Endpoint) { e.Secrets = []string{"hunter2!"} },
		func(e *webhook.Endpoint) { e.Secrets = []string{"whsec_hunter2A"} },
		func(e *webhook.Endpoint) { e.Headers = map[string]string{"x-key": "hunter2\n"} },
		func(e *webhook.Endpoint) { e.Headers = map[string]string{"Content-Type": "hunter2"} },
	} {
		bad := good
		change(&bad)
		config := webhook.Config{Endpoints: map[string]webhook.Endpoint{"crm": bad}}
		_, err := webhook.New(config)
		require.Error(t, err)
		tell(err.Error(), bad, config)
	}
	for _, word := range []string{"hunter2", "hun/", "me:12", secret, strings.TrimPrefix(secret, "whsec_"), string(key),
		hex.EncodeToString(key), hex.EncodeToString([]byte("hunter2")), fmt.Sprint(key), fmt.Sprintf("%#v", key)} {
		require.NotContains(t, told.String(), word)
	}
}

// TestWhatIsLogged: failures are logged at Debug, or at Warn if a configuration must be fixed.
func TestWhatIsLogged(t *testing.T) {
	t.Parallel()
	for code, warned := range map[int]bool{500: false, 422: false, 404: true, 410: true, 302: true} {
		var debug, warn syncBuffer
		r := newReceiver(t, status(code))
		for level, b := range map[slog.Level]*syncBuffer{slog.LevelDebug: &debug, slog.LevelWarn: &warn} {
			p := newPublisher(t, r.url, func(c *webhook.Config) {
				c.Logger = slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: level}))
			})
			require.Error(t, send(t, p, event("k")))
		}
		require.Contains(t, debug.String(), `msg="event not posted" destination=crm`)
		require.Equal(t, warned, warn.String() != "", code)
	}
}
