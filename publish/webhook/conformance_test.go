package webhook_test

import (
	"bytes"
	"net/http"
	"testing"

	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/publishtest"
)

const refused = "x-refused"

func TestConformance(t *testing.T) {
	t.Parallel()
	publishtest.Run(t, publishtest.Harness{Start: func(t testing.TB) publishtest.Target {
		healthy := func(w http.ResponseWriter, q *http.Request) {
			if q.Header.Get(refused) != "" {
				w.WriteHeader(http.StatusUnprocessableEntity)
			}
		}
		r := newReceiver(t, healthy)
		return publishtest.Target{
			Publisher:   newPublisher(t, r.url, nil),
			Destination: "crm",
			Received:    r.messages,
			Set: func(f publishtest.Fault) {
				switch f {
				case publishtest.Healthy:
					r.set(healthy)
					r.start()
				case publishtest.Failing:
					r.set(status(http.StatusInternalServerError))
				case publishtest.Down:
					r.stop()
				case publishtest.Hanging:
					r.set(hang)
				}
			},
			Refuse: func(o *publish.Outgoing) { o.Headers = map[string]string{refused: "yes"} },
		}
	}})
}

// TestConformanceWithAnOverloadedServer: a server that answers 503 is as unavailable as one that cannot be reached.
func TestConformanceWithAnOverloadedServer(t *testing.T) {
	t.Parallel()
	publishtest.Run(t, publishtest.Harness{Start: func(t testing.TB) publishtest.Target {
		healthy := func(w http.ResponseWriter, q *http.Request) {
			if q.ContentLength > 1<<19 {
				w.WriteHeader(http.StatusRequestEntityTooLarge)
			}
		}
		r := newReceiver(t, healthy)
		return publishtest.Target{
			Publisher:   newPublisher(t, r.url, nil),
			Destination: "crm",
			Received:    r.messages,
			Set: func(f publishtest.Fault) {
				r.set(map[publishtest.Fault]http.HandlerFunc{
					publishtest.Healthy: healthy,
					publishtest.Failing: raw("HTTP/1.1 2"),
					publishtest.Down:    status(http.StatusServiceUnavailable),
					publishtest.Hanging: hang,
				}[f])
			},
			Refuse: func(o *publish.Outgoing) {
				o.Payload = append(append([]byte(`"`), bytes.Repeat([]byte("x"), 1<<19)...), '"')
			},
		}
	}})
}
