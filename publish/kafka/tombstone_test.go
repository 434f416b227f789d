package kafka_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/consume"
	events "github.com/outboxgen/outboxgen/generator/testdata/tombstone/want"
	"github.com/outboxgen/outboxgen/generator/testdata/tombstone/want/userevents"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/kafka"
)

// directory is a service that keeps the names of users.
type directory struct {
	names   map[uuid.UUID]string
	reasons map[uuid.UUID]string // of deletions
}

func (d *directory) ConsumeUserChanged(_ context.Context, _ pgx.Tx, e consume.Delivery[userevents.UserChanged]) error {
	d.names[e.Payload.UserID] = e.Payload.Name
	return nil
}

func (d *directory) ConsumeUserDeleted(_ context.Context, _ pgx.Tx, e consume.Delivery[userevents.UserDeleted]) error {
	delete(d.names, e.Payload.UserID)
	d.reasons[e.Payload.UserID] = e.Payload.Reason
	return nil
}

func (d *directory) ConsumeSessionEnded(context.Context, pgx.Tx, consume.Delivery[userevents.SessionEnded]) error {
	return nil
}

// read returns a directory made of all records of the topic users.
func (c *cluster) read(t *testing.T) *directory {
	t.Helper()
	d := &directory{names: make(map[uuid.UUID]string), reasons: make(map[uuid.UUID]string)}
	ib, err := inbox.New(inbox.Config{Group: "directory"})
	require.NoError(t, err)
	consumer, err := userevents.NewUsersConsumer(ib, d)
	require.NoError(t, err)
	pool := pgtest.Database(t)
	for _, r := range c.compacted("users") {
		outcome, err := consumer.Consume(t.Context(), pool, consume.FromKafka(r.Headers, r.Value))
		require.NoError(t, err)
		require.Equal(t, inbox.Applied, outcome)
	}
	return d
}

// compacted returns what a topic with one partition has now. Compaction may have removed records.
func (c *cluster) compacted(topic string) (records []*kgo.Record) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.addrs...), kgo.ConsumeTopics(topic), kgo.DisableClientMetrics(), kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(c.t, err)
	defer cl.Close()
	end := c.PartitionInfo(topic, 0).HighWatermark
	for next := int64(0); next < end; {
		fetches := cl.PollFetches(ctx)
		require.NoError(c.t, ctx.Err())
		for _, r := range fetches.Records() {
			records, next = append(records, r), r.Offset+1
		}
	}
	return records
}

// TestTombstone follows a deletion from the enqueue to the consumer, with each encoder: the record has no value, its handler
// gets the whole payload, and compaction removes the records of the key before it.
func TestTombstone(t *testing.T) {
	t.Parallel()
	for name, encoder := range map[string]publish.Encoder{
		"binary": nil, "structured": publish.CloudEvents("", publish.Structured), "json": publish.JSON(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			cl, err := kgo.NewClient(kgo.SeedBrokers(c.addrs...), kgo.DisableClientMetrics())
			require.NoError(t, err)
			defer cl.Close()
			compact := "compact"
			_, err = kadm.NewClient(cl).CreateTopic(t.Context(), 1, 1, map[string]*string{"cleanup.policy": &compact}, "users")
			require.NoError(t, err)

			pool := pgtest.Database(t)
			gone, stays := uuid.New(), uuid.New()
			l, err := events.NewRelayListener(pool, listener.Config{Publishers: map[string]publish.Publisher{
				"kafka": c.publisher(t, func(cfg *kafka.Config) { cfg.Encoder = encoder }),
			}})
			require.NoError(t, err)
			relay := func(write func(tx pgx.Tx) error) {
				t.Helper()
				require.NoError(t, pgx.BeginFunc(t.Context(), pool, write))
				_, err = l.Drain(t.Context())
				require.NoError(t, err)
			}
			relay(func(tx pgx.Tx) error {
				for _, id := range []uuid.UUID{gone, stays} {
					if _, err := events.EnqueueUserChanged(t.Context(), tx, events.UserChanged{UserID: id, Name: "Zoë"}); err != nil {
						return err
					}
				}
				_, err := events.EnqueueUserDeleted(t.Context(), tx, events.UserDeleted{UserID: gone, Reason: "asked for it"})
				return err
			})
			records := c.received("users")
			require.Len(t, records, 3)
			require.Nil(t, records[2].Value)
			require.NotEmpty(t, header(records[2], publish.TombstoneHeader))
			require.Equal(t, gone.String(), string(records[2].Key))
			want := &directory{names: map[uuid.UUID]string{stays: "Zoë"}, reasons: map[uuid.UUID]string{gone: "asked for it"}}
			require.Equal(t, want, c.read(t))

			relay(func(tx pgx.Tx) error { // the cleaner leaves the latest batch alone
				_, err := events.EnqueueUserChanged(t.Context(), tx, events.UserChanged{UserID: stays, Name: "Zoe"})
				return err
			})
			c.Compact()
			for _, r := range c.compacted("users") {
				require.False(t, string(r.Key) == gone.String() && r.Value != nil, "compaction has removed the user")
			}
		})
	}
}

// TestTombstoneNeedsAKey: a record without a key and a value would be refused by a compacted topic.
func TestTombstoneNeedsAKey(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	o := event("", 1)
	o.Tombstone = true
	errs := c.publisher(t).Publish(t.Context(), []publish.Outgoing{o, event("a", 2)})
	require.True(t, outbox.IsPermanent(errs[0]), "%v", errs[0])
	require.ErrorContains(t, errs[0], "a tombstone without a key deletes nothing")
	require.NoError(t, errs[1])
}

// TestTombstoneHeaderIsOurs: a header of an event does not become the body of its message.
func TestTombstoneHeaderIsOurs(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	o := event("a", 1)
	o.Headers = map[string]string{"Outbox-Tombstone": `{"n":13}`, "kept": "yes"}
	o.Tombstone = true
	require.Equal(t, []error{nil}, c.publisher(t).Publish(t.Context(), []publish.Outgoing{o}))
	r := c.received(topic)[0]
	m := consume.FromKafka(r.Headers, r.Value)
	require.JSONEq(t, `{"n":1}`, string(m.Body))
	require.Equal(t, map[string]string{"kept": "yes"}, m.Headers)
}
