package nats_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/nats"
)

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]nats.Config{
		"field URL is empty":                              {},
		"field Timeout -1s is negative":                   {URL: "nats://nats:4222", Timeout: -time.Second},
		"field Concurrency -1 is not between 1 and 10000": {URL: "nats://nats:4222", Concurrency: -1},
		"field URL is not a list of URLs":                 {URL: "nats://nats:port"},
		`field Stream "a.b" is not a valid stream name`:   {URL: "nats://nats:4222", Stream: "a.b"},
		"no such file":                                    {URL: "nats://nats:4222", Options: []natsgo.Option{natsgo.RootCAs("missing.pem")}},
	} {
		_, err := nats.New(cfg)
		require.ErrorContains(t, err, "configure NATS publisher: ")
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
		"nats://me:hunter2@127.0.0.1:port", "nats://me:hunter2 @127.0.0.1:4222", "nats://me:hunter2%@127.0.0.1:4222",
		"nats://me:hun/ter2@127.0.0.1:4222", "nats://me:12/hunter2@127.0.0.1:4222", "nats://me:hunter2\n@127.0.0.1:4222", "nats://hunter2:x",
		"nats://127.0.0.1:4222,nats://me:hunter2@", "nats://[hunter2@::1]:4222", "me:hunter2:x@127.0.0.1:port",
	} {
		cfg := nats.Config{URL: url}
		_, err := nats.New(cfg)
		require.ErrorContains(t, err, "field URL is not a list of URLs", url)
		tell(err.Error(), cfg, &cfg)
	}
	cfg := nats.Config{URL: "nats://127.0.0.1:1", Options: []natsgo.Option{func(o *natsgo.Options) error {
		o.Servers = []string{"nats://me:hunter2@127.0.0.1:port"}
		return nil
	}}}
	_, err := nats.New(cfg)
	require.ErrorContains(t, err, "the address of a server is not a valid URL")
	tell(err.Error(), cfg)

	cfg = nats.Config{URL: "nats://me:hunter2@127.0.0.1:1", Logger: slog.New(slog.DiscardHandler)}
	p, err := nats.New(cfg)
	require.NoError(t, err)
	defer p.Close()
	tell(cfg, &cfg, p, p.Publish(t.Context(), []publish.Outgoing{event("a", 0)})[0].Error())
	require.Contains(t, told.String(), "nats.Publisher(127.0.0.1:1)")
	for _, secret := range []string{"hunter2", "hun/", "ter2", hex.EncodeToString([]byte("hunter2"))} {
		require.NotContains(t, told.String(), secret)
	}
}

// TestBinaryMessage: the headers and the body of a message in binary mode.
func TestBinaryMessage(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	o := event("user/17 ü", 1)
	o.TenantID = uuid.NullUUID{UUID: uuid.MustParse("7f000001-89ab-4cde-8f01-23456789abcd"), Valid: true}
	o.Entity = outbox.Entity{Type: "user", ID: "17", Version: 3}
	o.Headers = map[string]string{
		"traceparent": "00-a-b-01", "x-reason": "maßvoll", "CE-Id": "forged", "Content-Type": "text/plain",
		"nats-rollup": "all", "Nats-Expected-Last-Sequence": "17", "Nats-Msg-Id": "forged",
	}
	require.Equal(t, []error{nil}, b.publisher(t).Publish(t.Context(), []publish.Outgoing{o}))

	got := b.received()
	require.Len(t, got, 1)
	require.Equal(t, subject, got[0].Subject)
	require.JSONEq(t, `{"n":1}`, string(got[0].Data))
	require.Equal(t, natsgo.Header{
		"Nats-Msg-Id":        {o.ID.String()},
		"ce-datacontenttype": {"application/json"},
		"ce-dataversion":     {"1"},
		"ce-entityid":        {"17"},
		"ce-entitytype":      {"user"},
		"ce-entityversion":   {"3"},
		"ce-id":              {o.ID.String()},
		"ce-partitionkey":    {"user/17%20%C3%BC"},
		"ce-source":          {"/users"},
		"ce-specversion":     {"1.0"},
		"ce-subject":         {"17"},
		"ce-tenantid":        {"7f000001-89ab-4cde-8f01-23456789abcd"},
		"ce-time":            {"2026-11-21T13:14:15Z"},
		"ce-traceparent":     {"00-a-b-01"},
		"ce-type":            {"users.user_renamed"},
		"content-type":       {"application/json"},
		"x-reason":           {"maßvoll"},
	}, got[0].Header)
}

func TestOtherEncoders(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	o := event("", 1)
	for _, encoder := range []publish.Encoder{publish.CloudEvents("/people", publish.Structured), publish.JSON()} {
		p := b.publisher(t, func(cfg *nats.Config) { cfg.Encoder = encoder })
		o.ID = uuid.Must(uuid.NewV7())
		require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{o}))
	}
	got := b.received()
	require.Equal(t, natsgo.Header{
		"Nats-Msg-Id": got[0].Header["Nats-Msg-Id"], "content-type": {"application/cloudevents+json"},
	}, got[0].Header)
	require.Contains(t, string(got[0].Data), `"data":{"n":1}`)
	require.Equal(t, "users.user_renamed", got[1].Header.Get("outbox-type"))
	require.Empty(t, got[1].Header.Get("ce-datacontenttype"))
	require.JSONEq(t, `{"n":1}`, string(got[1].Data))
}

// TestSeveralServers: Config.URL may list several servers, and one that is away does not matter.
func TestSeveralServers(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	for _, list := range []string{"nats://127.0.0.1:1,URL", "URL, nats://127.0.0.1:1"} {
		p := b.publisher(t, func(cfg *nats.Config) { cfg.URL = strings.Replace(list, "URL", cfg.URL, 1) })
		settle(t, p, []publish.Outgoing{event("a", 1)})
	}
}

// TestSentAgainIsStoredOnce: the stream recognizes an event by its id.
func TestSentAgainIsStoredOnce(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	o := event("a", 1)
	for range 3 {
		require.Equal(t, []error{nil}, b.publisher(t).Publish(t.Context(), []publish.Outgoing{o}))
	}
	require.Len(t, b.received(), 1)
}

// TestLateDuplicate: an earlier process sends an event after another process has sent it and a newer one of its key. Within the
// duplicate window the stream drops it. After the window it is the last message of its key.
func TestLateDuplicate(t *testing.T) {
	t.Parallel()
	for name, window := range map[string]time.Duration{"within the window": time.Hour, "after the window": 100 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBroker(t)
			cfg := b.stream
			cfg.Duplicates = window
			b.configure(cfg)
			older, newer := event("a", 1), event("a", 2)
			require.Equal(t, []error{nil, nil}, b.publisher(t).Publish(t.Context(), []publish.Outgoing{older, newer}))
			late := b.publisher(t)
			want := []string{older.ID.String(), newer.ID.String()}
			if window < time.Minute {
				want = append(want, older.ID.String())
			}
			require.Eventually(t, func() bool {
				return late.Publish(t.Context(), []publish.Outgoing{older})[0] == nil && len(b.stored(t)) >= len(want)
			}, patience, 20*time.Millisecond)
			require.Equal(t, want, b.stored(t))
		})
	}
}

// TestRewindAfterAPurge: an event that the stream reports as a duplicate but no longer has is sent again.
func TestRewindAfterAPurge(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	p := b.publisher(t)
	var events []publish.Outgoing
	var ids []string
	for n := range 10 {
		events = append(events, event("a", n))
		ids = append(ids, events[n].ID.String())
	}
	publish := func() {
		t.Helper()
		require.Equal(t, make([]error, 10), p.Publish(t.Context(), events))
	}
	publish()
	publish()
	require.Equal(t, ids, b.ids())
	require.Equal(t, nats.Counts{Duplicates: 10}, p.Counts())

	stream, err := b.js.Stream(t.Context(), b.stream.Name)
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context()))
	publish()
	require.Equal(t, ids, b.stored(t))
	require.Equal(t, nats.Counts{Duplicates: 20, SentAgain: 10}, p.Counts())
	publish() // the purged messages are gone, those sent again are there
	require.Equal(t, ids, b.stored(t))
}

// stored returns the ids of the messages in the stream, even if the stream does not begin with the first message.
func (b *broker) stored(t testing.TB) (ids []string) {
	stream, err := b.js.Stream(t.Context(), b.stream.Name)
	require.NoError(t, err)
	for seq := stream.CachedInfo().State.FirstSeq; seq <= stream.CachedInfo().State.LastSeq; seq++ {
		m, err := stream.GetMsg(t.Context(), seq)
		require.NoError(t, err)
		ids = append(ids, m.Header.Get("ce-id"))
	}
	return ids
}

// TestDuplicatesThatCannotBeChecked: without the right to read, the publisher sends an event again rather than lose it.
func TestDuplicatesThatCannotBeChecked(t *testing.T) {
	t.Parallel()
	b := newBroker(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "root", Password: "secret"},
			{Username: "relay", Password: "relay", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: []string{"sc.>"}},
			}},
		}
	})
	p := b.publisher(t, func(cfg *nats.Config) { cfg.URL, cfg.Timeout = b.url("relay", "relay"), 200*time.Millisecond })
	o := event("a", 0)
	settle(t, p, []publish.Outgoing{o})
	stream, err := b.js.Stream(t.Context(), b.stream.Name)
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context()))
	settle(t, p, []publish.Outgoing{o})
	require.Contains(t, b.stored(t), o.ID.String())
}

// TestConfirmationOfAnotherStream: if the configuration names the stream, the server gets that name, and the publisher
// ignores a subscriber that confirms in the stream's place.
func TestConfirmationOfAnotherStream(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	named := b.publisher(t, func(cfg *nats.Config) { cfg.Stream = "USERS" })
	require.Equal(t, []error{nil}, named.Publish(t.Context(), []publish.Outgoing{event("a", 0)}))
	require.Equal(t, "USERS", b.received()[0].Header.Get("Nats-Expected-Stream"))
	wrong := b.publisher(t, func(cfg *nats.Config) { cfg.Stream = "ORDERS" })
	err := wrong.Publish(t.Context(), []publish.Outgoing{event("a", 1)})[0]
	require.True(t, outbox.IsUnavailable(err), "%v", err)
	require.ErrorContains(t, err, "expected stream does not match")

	seen := b.silence()
	result := make(chan []error, 1)
	go func() { result <- named.Publish(context.WithoutCancel(t.Context()), []publish.Outgoing{event("a", 2)}) }()
	require.NoError(t, (<-seen).Respond([]byte(`{"stream":"FORGED","seq":17}`)))
	err = (<-result)[0]
	require.True(t, outbox.IsUnavailable(err), "%v", err)
	require.ErrorContains(t, err, `confirmed by "FORGED", which is not the stream USERS`)
	for range 2 { // a stream that always says "duplicate" is not asked for ever
		go func() { result <- named.Publish(context.WithoutCancel(t.Context()), []publish.Outgoing{event("a", 3)}) }()
		for done := false; !done; {
			select {
			case m := <-seen:
				require.NoError(t, m.Respond([]byte(`{"stream":"USERS","seq":17,"duplicate":true}`)))
			case errs := <-result:
				require.True(t, outbox.IsUnavailable(errs[0]), "%v", errs[0])
				done = true
			}
		}
	}
}

// TestSubjectsDoNotWaitForEachOther: a subject whose stream does not answer delays only its own calls.
func TestSubjectsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	seen := b.silence()
	b.stream.Subjects = []string{"sc.other"}
	b.configure(b.stream)
	p := b.publisher(t, func(cfg *nats.Config) { cfg.Timeout, cfg.Concurrency = time.Hour, 1 })
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan []error, 1)
	go func() { result <- p.Publish(ctx, []publish.Outgoing{event("a", 0), event("b", 1)}) }()
	<-seen
	for n := range 50 {
		o := event("a", n)
		o.Destination = "sc.other"
		require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{o}))
	}
	cancel()
	<-result
}

func TestClosedPublisher(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	seen := b.silence()
	p := b.publisher(t)
	events := []publish.Outgoing{event("a", 1), event("a", 2)}
	result := make(chan []error, 1)
	go func() { result <- p.Publish(context.Background(), events) }()
	<-seen
	p.Close()
	for _, errs := range [][]error{<-result, p.Publish(t.Context(), events)} {
		require.ErrorIs(t, errs[0], nats.ErrClosed)
		require.True(t, outbox.IsUnavailable(errs[0]))
		require.Equal(t, outbox.ErrBehind, errs[1])
	}
	p.Close()
}

// silence lets a subscriber that does not answer take the subject. It returns the messages that the subscriber gets.
func (b *broker) silence() <-chan *natsgo.Msg {
	b.t.Helper()
	cfg := b.stream
	cfg.Subjects = []string{"elsewhere"}
	b.configure(cfg)
	seen := make(chan *natsgo.Msg, 100)
	_, err := b.nc.ChanSubscribe(subject, seen)
	require.NoError(b.t, err)
	require.NoError(b.t, b.nc.Flush())
	return seen
}

// TestKeysDoNotWaitForEachOther: the events of many keys are sent concurrently, and the second event of a key waits.
func TestKeysDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	seen := b.silence()
	p := b.publisher(t, func(cfg *nats.Config) { cfg.Concurrency = 3; cfg.Timeout = patience })
	events := []publish.Outgoing{event("a", 0), event("a", 1), event("b", 2), event("", 3), event("c", 4)}
	result := make(chan []error, 1)
	go func() { result <- p.Publish(context.Background(), events) }()
	flying := make(map[string]*natsgo.Msg)
	for range 3 {
		m := <-seen
		flying[m.Header.Get("ce-id")] = m
	}
	require.Empty(t, seen, "no more than three concurrently")
	for _, i := range []int{0, 2, 3} {
		require.Contains(t, flying, events[i].ID.String())
	}
	confirm := func(m *natsgo.Msg) {
		require.NoError(t, m.Respond([]byte(`{"stream":"USERS","seq":1}`)))
	}
	confirm(flying[events[0].ID.String()])
	next := <-seen
	require.Equal(t, events[1].ID.String(), next.Header.Get("ce-id"), "only after the first of its key is confirmed")
	confirm(next)
	confirm(<-seen)
	confirm(flying[events[2].ID.String()])
	confirm(flying[events[3].ID.String()])
	require.Equal(t, make([]error, 5), <-result)
}

// TestGivenUpIsNotSent: without a connection, nothing is buffered to be sent later.
func TestGivenUpIsNotSent(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	p := b.publisher(t)
	require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{event("a", 0)}))
	b.kill()
	require.Eventually(t, func() bool {
		return outbox.IsUnavailable(p.Publish(t.Context(), []publish.Outgoing{event("a", 1)})[0])
	}, patience, 10*time.Millisecond)
	require.True(t, outbox.IsUnavailable(p.Publish(t.Context(), []publish.Outgoing{event("c", 1)})[0]))
	b.start()
	last := event("b", 2)
	settle(t, p, []publish.Outgoing{last})
	got := b.ids()
	require.Len(t, got, 2)
	require.Equal(t, last.ID.String(), got[1])
}

// TestKilledWhilePublishing: the server is killed and started again repeatedly. In the end all events are there, in order.
func TestKilledWhilePublishing(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	b.stream.Duplicates = 100 * time.Millisecond // so that an event that is sent again may be stored twice
	b.configure(b.stream)
	p := b.publisher(t)
	var events []publish.Outgoing
	total := 0
	more := func(n int) { // to be published
		for range n {
			events = append(events, event(string(rune('a'+total%7)), total))
			total++
		}
	}
	unavailable := 0
	for kills := 0; kills < 4; kills++ {
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			b.kill()
			b.start()
		}()
		for down, over := false, false; !down && !over; { // until the outage is noticed
			select {
			case <-killed:
				over = true
			default:
			}
			more(max(0, 500-len(events)))
			var pending []publish.Outgoing
			for i, err := range p.Publish(t.Context(), events[:400]) {
				require.False(t, outbox.IsPermanent(err), "%v", err)
				if outbox.IsUnavailable(err) {
					unavailable++
					down = true
				}
				if err != nil {
					pending = append(pending, events[i])
				}
			}
			events = append(pending, events[400:]...)
		}
		<-killed
	}
	require.Positive(t, unavailable, "the kills were not noticed")
	settle(t, p, events)
	last := make(map[string]int)
	seen := make(map[string]bool)
	for _, m := range b.received() {
		var n int
		_, err := fmt.Sscanf(string(m.Data), `{"n":%d}`, &n)
		require.NoError(t, err)
		key := string(rune('a' + n%7))
		if id := m.Header.Get(jetstream.MsgIDHeader); !seen[id] {
			seen[id] = true
			require.GreaterOrEqual(t, n, last[key], "key %s", key)
			last[key] = n
		}
	}
	require.Len(t, seen, total)
}
