package cards_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/examples/users/cards"
	"github.com/outboxgen/outboxgen/examples/users/events/userevents"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/publish"
)

const (
	patience = 2 * time.Minute
	look     = 20 * time.Millisecond
)

// fixture is a cluster with the topic, and a database with the tables of the projection.
type fixture struct {
	t       *testing.T
	pool    *pgxpool.Pool
	cluster *kfake.Cluster
	brokers []string
	client  *kgo.Client
	admin   *kadm.Client
	tenant  uuid.UUID
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, cards.Topic))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	brokers := cluster.ListenAddrs()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DisableClientMetrics())
	require.NoError(t, err)
	t.Cleanup(client.Close)
	pool := outboxtest.Postgres(t)
	require.NoError(t, cards.Migrate(t.Context(), pool))
	return &fixture{
		t: t, pool: pool, cluster: cluster, brokers: brokers, client: client, admin: kadm.NewClient(client),
		tenant: uuid.New(),
	}
}

func (f *fixture) projection(change ...func(*cards.Config)) *cards.Projection {
	f.t.Helper()
	cfg := cards.Config{Brokers: f.brokers, Receive: receive.Config{Logger: slog.New(slog.DiscardHandler)}}
	for _, fn := range change {
		fn(&cfg)
	}
	p, err := cards.New(f.pool, cfg)
	require.NoError(f.t, err)
	return p
}

// start runs p until stop is called or the test ends. Every call of stop returns the error of Run.
func (f *fixture) start(p *cards.Projection) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var err error
	running.Go(func() { err = p.Run(ctx) })
	stop = func() error {
		cancel()
		running.Wait()
		return err
	}
	f.t.Cleanup(func() { _ = stop() })
	return stop
}

// project runs a projection until it has caught up.
func (f *fixture) project(change ...func(*cards.Config)) *cards.Projection {
	f.t.Helper()
	p := f.projection(change...)
	stop := f.start(p)
	f.awaitEnd(p)
	require.NoError(f.t, stop())
	return p
}

// awaitEnd waits until the group of p has committed all messages of the topic.
func (f *fixture) awaitEnd(p *cards.Projection) {
	f.t.Helper()
	group, err := p.Group(f.t.Context())
	require.NoError(f.t, err)
	require.Eventually(f.t, func() bool { return f.lag(group) == 0 }, patience, look, "lag of %s", group)
}

// lag returns how many messages a group has not committed, or -1 while that is not known.
func (f *fixture) lag(group string) (lag int64) {
	ends, err := f.admin.ListEndOffsets(context.Background(), cards.Topic)
	if err != nil || ends.Error() != nil {
		return -1
	}
	offsets, err := f.admin.FetchOffsets(context.Background(), group)
	if err != nil || offsets.Error() != nil {
		return -1
	}
	ends.Each(func(end kadm.ListedOffset) {
		lag += end.Offset
		if o, committed := offsets.Lookup(end.Topic, end.Partition); committed {
			lag -= max(o.At, 0)
		}
	})
	return lag
}

// publish sends events in the given order, as the relay of the users does.
func (f *fixture) publish(events ...publish.Outgoing) {
	f.t.Helper()
	records := make([]*kgo.Record, len(events))
	for i, e := range events {
		m, err := publish.Encoder(nil).Encode(e)
		require.NoError(f.t, err)
		records[i] = &kgo.Record{Topic: e.Destination, Key: []byte(e.Key), Value: m.Body}
		add := func(name, value string) {
			records[i].Headers = append(records[i].Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
		}
		add("content-type", m.ContentType)
		for name, value := range m.Attributes {
			add("ce_"+name, value)
		}
	}
	require.NoError(f.t, f.client.ProduceSync(f.t.Context(), records...).FirstErr())
}

// produce sends a message as it is.
func (f *fixture) produce(r *kgo.Record) {
	f.t.Helper()
	r.Topic = cards.Topic
	require.NoError(f.t, f.client.ProduceSync(f.t.Context(), r).FirstErr())
}

// joined is when all users have joined.
var joined = time.Date(2026, 11, 21, 13, 14, 15, 0, time.UTC)

// life returns the events of a new user, and the card that they lead to. The user is created, renamed so many times, and
// deleted or not.
func (f *fixture) life(renames int, deleted bool) ([]publish.Outgoing, cards.Card) {
	card := cards.Card{UserID: uuid.New(), Version: 1, JoinedAt: joined}
	profile := func() userevents.Profile {
		card.Name, card.Email = fmt.Sprintf("name %d", card.Version), "a@example.com"
		return userevents.Profile{Name: card.Name, Email: card.Email, JoinedAt: joined}
	}
	events := []publish.Outgoing{f.event(card, "created", userevents.UserCreated{
		TenantID: f.tenant, UserID: card.UserID, UserVersion: 1, Profile: profile(),
	})}
	for range renames {
		card.Version++
		events = append(events, f.event(card, "renamed", userevents.UserRenamed{
			TenantID: f.tenant, UserID: card.UserID, UserVersion: card.Version, Profile: profile(),
		}))
	}
	if deleted {
		card = cards.Card{UserID: card.UserID, Version: card.Version + 1, Deleted: true, JoinedAt: time.Unix(0, 0).UTC()}
		events = append(events, f.event(card, "deleted", userevents.UserDeleted{
			TenantID: f.tenant, UserID: card.UserID, UserVersion: card.Version,
		}))
	}
	return events, card
}

func (f *fixture) event(card cards.Card, topic string, payload any) publish.Outgoing {
	f.t.Helper()
	body, err := json.Marshal(payload)
	require.NoError(f.t, err)
	key := card.UserID.String()
	return publish.Outgoing{
		Event: outbox.Event{
			ID: uuid.Must(uuid.NewV7()), Namespace: "user", Topic: topic, Version: 1, PartitionKey: key,
			TenantID:  uuid.NullUUID{UUID: f.tenant, Valid: true},
			Entity:    outbox.Entity{Type: "user", ID: key, Version: card.Version},
			CreatedAt: joined,
		},
		Payload: body, Destination: cards.Topic, Key: key,
	}
}

// lives returns the events of n users and their cards. The events of different users are mixed, those of one are in order.
func (f *fixture) lives(n int) (events []publish.Outgoing, want []cards.Card) {
	queues := make([][]publish.Outgoing, n)
	var turns []int
	for i := range n {
		var card cards.Card
		queues[i], card = f.life(i%5, i%3 == 0)
		want = append(want, card)
		for range queues[i] {
			turns = append(turns, i)
		}
	}
	shuffle(turns)
	for _, i := range turns {
		events = append(events, queues[i][0])
		queues[i] = queues[i][1:]
	}
	return events, want
}

func shuffle[E any](s []E) {
	rand.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
}

// requireCards fails unless the tenant has exactly the given cards.
func (f *fixture) requireCards(want ...cards.Card) {
	f.t.Helper()
	got, err := cards.List(f.t.Context(), f.pool, f.tenant)
	require.NoError(f.t, err)
	for i := range got {
		got[i].JoinedAt = got[i].JoinedAt.UTC()
	}
	want = append([]cards.Card{}, want...)
	slices.SortFunc(want, func(a, b cards.Card) int { return slices.Compare(a.UserID[:], b.UserID[:]) })
	require.Equal(f.t, want, got)
}

// requireEachOnce fails unless each event has changed a card once, which is so if they arrived in order.
func (f *fixture) requireEachOnce(events int) {
	f.t.Helper()
	require.Zero(f.t, f.count("SELECT count(*) FROM cards.cards WHERE changes <> version"))
	require.Equal(f.t, events, f.count("SELECT sum(changes) FROM cards.cards"))
	require.Equal(f.t, events, f.count("SELECT count(*) FROM cards_inbox.processed_events"))
}

func (f *fixture) count(query string, args ...any) (n int) {
	f.t.Helper()
	require.NoError(f.t, f.pool.QueryRow(f.t.Context(), query, args...).Scan(&n))
	return n
}

func (f *fixture) exec(query string) {
	f.t.Helper()
	_, err := f.pool.Exec(f.t.Context(), query)
	require.NoError(f.t, err)
}
