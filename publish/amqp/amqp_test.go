package amqp_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/amqp"
)

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]amqp.Config{
		"field URL is empty":                             {},
		"field Timeout -1s is negative":                  {URL: "amqp://rabbit", Timeout: -time.Second},
		"field Concurrency -1 is not between 1 and 1000": {URL: "amqp://rabbit", Concurrency: -1},
		"field URL is not a list of URLs":                {URL: "amqp://rabbit:port"},
		"field URL has a server without amqp://":         {URL: "amqp://rabbit,http://rabbit"},
		"field URL has a heartbeat":                      {URL: "amqp://rabbit?heartbeat=0"},
		"field URL has a parameter that is not valid":    {URL: "amqp://rabbit?channel_max=many"},
	} {
		_, err := amqp.New(cfg)
		require.ErrorContains(t, err, "configure RabbitMQ publisher: ")
		require.ErrorContains(t, err, want)
	}
}

// TestNoSecretIsTold: no error, verb or log shows credentials.
func TestNoSecretIsTold(t *testing.T) {
	t.Parallel()
	var told bytes.Buffer
	tell := func(what ...any) {
		for _, v := range what {
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
	for _, url := range []string{
		"amqp://me:hunter2@127.0.0.1:port", "amqp://me:hunter2 @127.0.0.1:5672", "amqp://me:hunter2%@127.0.0.1:5672",
		"amqp://me:hun/ter2@127.0.0.1:5672", "amqp://me:12/hunter2@127.0.0.1:5672", "amqp://me:hunter2\n@127.0.0.1:5672",
		"amqp://127.0.0.1:5672,amqp://me:hunter2@", "amqp://[hunter2@::1]:5672", "me:hunter2:x@127.0.0.1:port",
		"http://me:hunter2@127.0.0.1", "amqp://me:hunter2@127.0.0.1?heartbeat=hunter2", "amqp://me:hunter2@127.0.0.1?channel_max=hunter2",
	} {
		cfg := amqp.Config{URL: url}
		_, err := amqp.New(cfg)
		require.ErrorContains(t, err, "field URL ", url)
		tell(err.Error(), cfg, &cfg)
	}
	var log bytes.Buffer
	cfg := amqp.Config{
		URL: "amqp://me:hunter2@127.0.0.1:1", Logger: slog.New(slog.NewTextHandler(&log, nil)),
		SASL: []amqp091.Authentication{&amqp091.PlainAuth{Username: "me", Password: "hunter2"}},
	}
	p, err := amqp.New(cfg)
	require.NoError(t, err)
	tell(cfg, &cfg, p, p.Publish(t.Context(), []publish.Outgoing{event("a", 0)})[0].Error())
	p.Close()
	require.Contains(t, log.String(), "amqp connection: cannot connect")
	told.Write(log.Bytes())
	require.Contains(t, told.String(), "amqp.Publisher(127.0.0.1:1)")
	for _, secret := range []string{"hunter2", "hun/", "ter2", hex.EncodeToString([]byte("hunter2"))} {
		require.NotContains(t, told.String(), secret)
	}
}

// TestBinaryMessage: the properties, the headers and the body of a message in binary mode.
func TestBinaryMessage(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	o := full(b.event("user/17 ü", 1))
	for name, value := range map[string]string{
		"cloudEvents:id": "forged", "CLOUDEVENTS_id": "forged", "CC": "elsewhere", "BCC": "elsewhere", "x-empty": "",
	} {
		o.Headers[name] = value
	}
	require.Equal(t, []error{nil}, b.publisher(t).Publish(t.Context(), []publish.Outgoing{o}))
	got := b.received()
	require.Len(t, got, 1)
	d := got[0]
	require.Equal(t, b.exchange, d.Exchange)
	require.Equal(t, "user.renamed", d.RoutingKey)
	require.Equal(t, o.ID.String(), d.MessageId)
	require.Equal(t, "users.user_renamed", d.Type)
	require.Equal(t, "application/json", d.ContentType)
	require.Equal(t, amqp091.Persistent, d.DeliveryMode)
	require.Equal(t, o.CreatedAt, d.Timestamp.UTC())
	require.JSONEq(t, `{"n":1}`, string(d.Body))
	require.Equal(t, amqp091.Table{
		"cloudEvents:dataversion":   "1",
		"cloudEvents:entityid":      "17",
		"cloudEvents:entitytype":    "user",
		"cloudEvents:entityversion": "3",
		"cloudEvents:id":            o.ID.String(),
		"cloudEvents:partitionkey":  "user/17 ü",
		"cloudEvents:source":        "/users",
		"cloudEvents:specversion":   "1.0",
		"cloudEvents:subject":       "17",
		"cloudEvents:tenantid":      "7f000001-89ab-4cde-8f01-23456789abcd",
		"cloudEvents:time":          "2026-11-21T13:14:15Z",
		"cloudEvents:traceparent":   "00-a-b-01",
		"cloudEvents:type":          "users.user_renamed",
		"x-reason":                  "maßvoll",
		"x-empty":                   "",
	}, d.Headers)
}

// TestAddresses: an event with an invalid address is refused, and names are percent-decoded.
func TestAddresses(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	p := b.publisher(t, func(cfg *amqp.Config) { cfg.NoRouteTimeout = -1 })
	for bad, why := range map[string]string{
		"": "use /exchanges/", "users": "use /exchanges/", "/topics/users": "use /exchanges/", "/exchanges/": "the name is empty",
		"/queues/": "the name is empty", "/queues/a/b": "write a slash in a name as %2F", "/exchanges/a/b/c": "write a slash in a name as %2F",
		"/queues/%zz": "percent-encode the name", "/exchanges/a/%": "percent-encode the routing key", "/exchanges//key": "the name is empty",
		"/queues/" + strings.Repeat("q", 256): "up to 255 bytes",
	} {
		o := b.event("a", 0)
		o.Destination = bad
		requirePermanent(t, p.Publish(t.Context(), []publish.Outgoing{o})[0], why)
	}
	odd := "q/ü " + b.queue
	b.control(func(ch *amqp091.Channel) error {
		if _, err := ch.QueueDeclare(odd, false, true, false, false, nil); err != nil {
			return err
		}
		return ch.QueueBind(odd, "user/ü", b.exchange, false, nil)
	})
	for _, good := range []string{"/queues/q%2F%C3%BC%20" + b.queue, "/exchanges/" + b.exchange + "/user%2F%C3%BC", "/exchanges/" + b.exchange + "/user.", "/queues/" + b.queue} {
		o := b.event("a", 0)
		o.Destination = good
		require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{o}), good)
	}
	o := b.event("a", 0)
	o.Destination = "/exchanges/" + b.exchange
	requirePermanent(t, p.Publish(t.Context(), []publish.Outgoing{o})[0], `with routing key ""`)
}
