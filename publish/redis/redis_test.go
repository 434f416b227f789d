package redis_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/redis"
)

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	const url = "redis://redis:6379"
	for want, cfg := range map[string]redis.Config{
		"field URL is empty":                             {},
		"fields URL and Options cannot be combined":      {URL: url, Options: &goredis.UniversalOptions{Addrs: []string{"redis:6379"}}},
		"field Options has no addresses: set Addrs":      {Options: &goredis.UniversalOptions{}},
		"field Options has a URL or a user in Addrs":     {Options: &goredis.UniversalOptions{Addrs: []string{url}}},
		"field Timeout -1s is negative":                  {URL: url, Timeout: -time.Second},
		"field MaxLen -1 is negative":                    {URL: url, MaxLen: -1},
		"field MaxBytes -1 is negative":                  {URL: url, MaxBytes: -1},
		"field Replicas 101 is not between 0 and 100":    {URL: url, Replicas: 101},
		"field Concurrency -1 is not between 1 and 1000": {URL: url, Concurrency: -1},
		"field URL is not a URL":                         {URL: "redis://redis:port"},
		"field URL is not valid":                         {URL: "http://redis"},
	} {
		_, err := redis.New(cfg)
		require.ErrorContains(t, err, "configure Redis publisher: ")
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
	for _, cfg := range []redis.Config{
		{URL: "redis://me:hunter2@127.0.0.1:port"}, {URL: "redis://me:hunter2 @127.0.0.1:6379"}, {URL: "redis://me:hunter2%@127.0.0.1:6379"},
		{URL: "redis://me:hun/ter2@127.0.0.1:6379"}, {URL: "redis://me:12/hunter2@127.0.0.1:6379"}, {URL: "redis://me:hunter2\n@127.0.0.1:6379"},
		{URL: "redis://me:hunter2@"}, {URL: "redis://[hunter2@::1]:6379"}, {URL: "me:hunter2:x@127.0.0.1:port"}, {URL: "http://me:hunter2@redis"},
		{URL: "redis://me:hunter2@127.0.0.1/hunter2"}, {URL: "redis://me:hunter2@127.0.0.1?db=hunter2"},
		{Options: &goredis.UniversalOptions{Addrs: []string{"me:hunter2@127.0.0.1:6379"}}},
	} {
		_, err := redis.New(cfg)
		require.ErrorContains(t, err, "field ", cfg.URL)
		tell(err.Error(), cfg, &cfg)
	}
	for _, cfg := range []redis.Config{
		{URL: "redis://me:hunter2@127.0.0.1:1"},
		{Options: &goredis.UniversalOptions{Addrs: []string{"127.0.0.1:1"}, Username: "me", Password: "hunter2"}},
	} {
		p, err := redis.New(cfg)
		require.NoError(t, err)
		tell(cfg, &cfg, p, p.Publish(t.Context(), []publish.Outgoing{event("a", 0)})[0].Error())
		p.Close()
	}
	require.Contains(t, told.String(), "redis.Publisher(127.0.0.1:1)")
	for _, secret := range []string{"hunter2", "hun/", "ter2", hex.EncodeToString([]byte("hunter2"))} {
		require.NotContains(t, told.String(), secret)
	}
}

// TestBinaryEntry: the fields of an entry in binary mode.
func TestBinaryEntry(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	o := full(event("user/17 ü", 1))
	for name, value := range map[string]string{"ce_id": "forged", "CE_ID": "forged", "data": "forged", "Content-Type": "forged", "x-empty": ""} {
		o.Headers[name] = value
	}
	require.Equal(t, []error{nil}, b.publisher(t).Publish(t.Context(), []publish.Outgoing{o}))
	got := b.received()
	require.Len(t, got, 1)
	require.Equal(t, map[string]any{
		"ce_dataversion":   "1",
		"ce_entityid":      "17",
		"ce_entitytype":    "user",
		"ce_entityversion": "3",
		"ce_id":            o.ID.String(),
		"ce_partitionkey":  "user/17 ü",
		"ce_source":        "/users",
		"ce_specversion":   "1.0",
		"ce_subject":       "17",
		"ce_tenantid":      "7f000001-89ab-4cde-8f01-23456789abcd",
		"ce_time":          "2026-11-21T13:14:15Z",
		"ce_traceparent":   "00-a-b-01",
		"ce_type":          "users.user_renamed",
		"content-type":     "application/json",
		"data":             `{"n":1}`,
		"x-reason":         "maßvoll",
		"x-empty":          "",
	}, got[0].Values)
}

// TestNoFieldTwice: a header that is called like a field of the publisher makes no second field with that name.
func TestNoFieldTwice(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	o := event("a", 1)
	o.Headers = map[string]string{"data": "forged", "content-type": "forged", "ce_id": "forged"}
	require.Equal(t, []error{nil}, b.publisher(t).Publish(t.Context(), []publish.Outgoing{o}))
	entries, err := b.client.Do(t.Context(), "XRANGE", stream, "-", "+").Slice()
	require.NoError(t, err)
	require.Len(t, entries[0].([]any)[1], 2*len(b.received()[0].Values))
}

// TestMaxLen: each event trims its stream, if that is asked for.
func TestMaxLen(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	b.do("CONFIG", "SET", "stream-node-max-entries", 10) // Redis removes whole nodes
	p := b.publisher(t, func(cfg *redis.Config) { cfg.MaxLen = 20 })
	var events []publish.Outgoing
	for n := range 100 {
		events = append(events, event("a", n))
	}
	require.Equal(t, make([]error, 100), p.Publish(t.Context(), events))
	ids := b.ids()
	require.GreaterOrEqual(t, len(ids), 20)
	require.Less(t, len(ids), 40)
	require.Equal(t, events[99].ID.String(), ids[len(ids)-1])
}

// TestWhatRedisCannotTake: an event that is too large or has no destination is refused, and no other is.
func TestWhatRedisCannotTake(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	p := b.publisher(t, func(cfg *redis.Config) { cfg.MaxBytes = 10_000 })
	events := []publish.Outgoing{event("a", 0), large(event("a", 1), 10_000), event("b", 2), event("b", 3)}
	events[2].Destination = ""
	errs := p.Publish(t.Context(), events)
	require.NoError(t, errs[0])
	requireOutcome(t, errs[1], permanent, "more than MaxBytes, 10000")
	requireOutcome(t, errs[2], permanent, "the destination is empty")
	require.Equal(t, []string{events[0].ID.String()}, b.ids())
}
