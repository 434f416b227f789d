package nats_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outboxgen/outboxgen/internal/testing/freeport"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/nats"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(pgtest.Supervisor))
}

const (
	subject  = "sc.domain.user"
	patience = 2 * time.Minute
)

// broker is a NATS server with a stream for subject. It can be killed, and started again with the messages that it had.
type broker struct {
	t    testing.TB
	opts server.Options
	*server.Server
	nc     *natsgo.Conn // the connection of the test
	js     jetstream.JetStream
	stream jetstream.StreamConfig
}

func newBroker(t testing.TB, change ...func(*server.Options)) *broker {
	t.Helper()
	port, err := freeport.Find() // which stays its own when it is started again
	require.NoError(t, err)
	b := &broker{t: t, opts: server.Options{
		ServerName: "one", Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
	}}
	for _, f := range change {
		f(&b.opts)
	}
	b.start()
	t.Cleanup(b.kill)
	user := natsgo.UserInfo(b.opts.Username, b.opts.Password)
	if len(b.opts.Users) > 0 {
		user = natsgo.UserInfo(b.opts.Users[0].Username, b.opts.Users[0].Password)
	}
	b.nc, err = natsgo.Connect(b.ClientURL(), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(50*time.Millisecond), user)
	require.NoError(t, err)
	t.Cleanup(b.nc.Close)
	b.js, err = jetstream.New(b.nc)
	require.NoError(t, err)
	b.configure(jetstream.StreamConfig{Name: "USERS", Subjects: []string{"sc.domain.>"}, MaxMsgSize: 512 << 10})
	return b
}

// configure creates or changes the stream. It repeats its request, because the test's connection may be reconnecting.
func (b *broker) configure(cfg jetstream.StreamConfig) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := b.js.CreateOrUpdateStream(ctx, cfg)
		return err == nil
	}, patience, 10*time.Millisecond)
	b.stream = cfg
}

// start starts the server, at its former address.
func (b *broker) start() {
	b.t.Helper()
	require.NoError(b.t, freeport.Reclaim(fmt.Sprintf("%s:%d", b.opts.Host, b.opts.Port)))
	opts := b.opts
	s, err := server.NewServer(&opts)
	require.NoError(b.t, err)
	s.Start()
	require.True(b.t, s.ReadyForConnections(patience))
	b.Server = s
}

func (b *broker) kill() {
	b.Shutdown()
	b.WaitForShutdown()
}

// url returns the URL of the server, with credentials if there are any.
func (b *broker) url(user, password string) string {
	u := url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", b.opts.Port)}
	if user != "" {
		u.User = url.UserPassword(user, password)
	}
	return u.String()
}

func (b *broker) publisher(t testing.TB, change ...func(*nats.Config)) *nats.Publisher {
	t.Helper()
	cfg := nats.Config{URL: b.url("", ""), Logger: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&cfg)
	}
	p, err := nats.New(cfg)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// received returns the messages in the stream, in order.
func (b *broker) received() []*jetstream.RawStreamMsg {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var stream jetstream.Stream
	require.Eventually(b.t, func() bool { // as in configure
		asking, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		var err error
		stream, err = b.js.Stream(asking, b.stream.Name)
		return err == nil
	}, patience, 10*time.Millisecond)
	var messages []*jetstream.RawStreamMsg
	for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
		m, err := stream.GetMsg(ctx, seq)
		require.NoError(b.t, err)
		messages = append(messages, m)
	}
	return messages
}

// ids returns the event ids of the messages in the stream.
func (b *broker) ids() []string {
	b.t.Helper()
	var ids []string
	for _, m := range b.received() {
		ids = append(ids, m.Header.Get("ce-id"))
	}
	return ids
}

// decoded returns a message as the encoder made it.
func decoded(t testing.TB, header natsgo.Header, data []byte) publish.Message {
	t.Helper()
	m := publish.Message{Attributes: make(map[string]string), Headers: make(map[string]string), Body: data}
	for name, values := range header {
		require.Len(t, values, 1)
		if attribute, is := strings.CutPrefix(name, "ce-"); is {
			value, err := url.PathUnescape(values[0])
			require.NoError(t, err)
			m.Attributes[attribute] = value
			continue
		}
		m.Headers[name] = values[0]
	}
	require.Equal(t, m.Headers["content-type"], m.Attributes["datacontenttype"])
	m.ContentType = m.Headers["content-type"]
	delete(m.Attributes, "datacontenttype")
	delete(m.Headers, "content-type")
	return m
}

// event returns an event with a key.
func event(key string, n int) publish.Outgoing {
	return publish.Outgoing{
		Event: outbox.Event{
			ID: uuid.Must(uuid.NewV7()), Namespace: "users", Topic: "user_renamed", Version: 1, PartitionKey: key,
			Attempt: 1, MaxAttempts: 5, CreatedAt: time.Date(2026, 11, 21, 13, 14, 15, 0, time.UTC),
		},
		Payload: json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)), Destination: subject, Key: key,
	}
}

// large returns an event with a payload of so many bytes.
func large(o publish.Outgoing, bytes int) publish.Outgoing {
	o.Payload = json.RawMessage(`"` + strings.Repeat("x", bytes) + `"`)
	return o
}

// settle publishes until all events are stored. A connection takes a moment to come back.
func settle(t testing.TB, p *nats.Publisher, events []publish.Outgoing) {
	t.Helper()
	require.Eventually(t, func() bool {
		var pending []publish.Outgoing
		for i, err := range p.Publish(t.Context(), events) {
			if err != nil {
				pending = append(pending, events[i])
			}
		}
		events = pending
		return len(events) == 0
	}, patience, 20*time.Millisecond)
}
