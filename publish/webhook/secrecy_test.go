package webhook_test

import (
	"bytes"
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

// syncBuffer is a bytes.Buffer for several goroutines.
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

// TestNothingSecretIsTold: an endpoint that throws back whatever it was sent finds it in no error and no log.
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

// TestWhatIsLogged: everything at Debug, and at Warn what somebody has to mend.
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
