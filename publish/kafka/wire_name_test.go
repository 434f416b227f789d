package kafka_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outboxgen/outboxgen/consume"
	events "github.com/outboxgen/outboxgen/generator/testdata/wire-name/want"
	"github.com/outboxgen/outboxgen/generator/testdata/wire-name/want/userevents"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/kafka"
	"github.com/outboxgen/outboxgen/queue"
)

// seen is a service that notes what it consumes: the names of the event and its key.
type seen struct {
	names [][3]string
	ids   []uuid.UUID
}

func (s *seen) ConsumeUserCreated(_ context.Context, _ pgx.Tx, e consume.Delivery[userevents.UserCreated]) error {
	s.names, s.ids = append(s.names, [3]string{e.Type, e.Namespace, e.Topic}), append(s.ids, e.Payload.UserID)
	return nil
}

func (s *seen) ConsumeUserDeleted(_ context.Context, _ pgx.Tx, e consume.Delivery[userevents.UserDeleted]) error {
	s.names, s.ids = append(s.names, [3]string{e.Type, e.Namespace, e.Topic}), append(s.ids, e.Payload.UserID)
	return nil
}

func (s *seen) ConsumeMessageCreated(_ context.Context, _ pgx.Tx, e consume.Delivery[userevents.MessageCreated]) error {
	s.names, s.ids = append(s.names, [3]string{e.Type, e.Namespace, e.Topic}), append(s.ids, e.Payload.MessageID)
	return nil
}

// TestWireNames follows events of topics with and without a wire name from the enqueue to the consumer, through a cluster, with
// each encoder. Messages from before the topic had its wire name are consumed too.
func TestWireNames(t *testing.T) {
	t.Parallel()
	for name, encoder := range map[string]publish.Encoder{
		"binary": nil, "structured": publish.CloudEvents("", publish.Structured), "json": publish.JSON(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, kfake.SeedTopics(1, "crm", "threads.messages"))
			p := c.publisher(t, func(cfg *kafka.Config) { cfg.Encoder = encoder })
			everywhere := map[string]publish.Publisher{"kafka": p, "webhook": p, "nats": p}
			pool := pgtest.Database(t)
			user, message := uuid.New(), uuid.New()
			require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				if _, err := events.EnqueueUserCreated(t.Context(), tx, events.UserCreated{UserID: user, Name: "Zoë"}); err != nil {
					return err
				}
				if _, err := events.EnqueueUserDeleted(t.Context(), tx, events.UserDeleted{UserID: user}); err != nil {
					return err
				}
				_, err := events.EnqueueMessageCreated(t.Context(), tx, events.MessageCreated{ThreadID: uuid.New(), MessageID: message})
				return err
			}))
			d, err := events.NewUsersDispatcher(pool, queue.Config{Publishers: everywhere})
			require.NoError(t, err)
			require.Equal(t, 2, outboxtest.Drain(t, d).Delivered)
			l, err := events.NewRelayListener(pool, listener.Config{Publishers: everywhere})
			require.NoError(t, err)
			report, err := l.Drain(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, report.Delivered)

			s := &seen{}
			ib, err := inbox.New(inbox.Config{Group: "cards"})
			require.NoError(t, err)
			users, err := userevents.NewUsersConsumer(ib, s)
			require.NoError(t, err)
			threads, err := userevents.NewThreadsConsumer(ib, s)
			require.NoError(t, err)
			for _, from := range []struct {
				topic    string
				consumer *consume.Consumer
			}{{topic, users}, {"crm", users}, {"threads.messages", threads}} {
				records := c.received(from.topic)
				require.Len(t, records, 1)
				outcome, err := from.consumer.Consume(t.Context(), pool, consume.FromKafka(records[0].Headers, records[0].Value))
				require.NoError(t, err)
				require.Equal(t, inbox.Applied, outcome)
			}
			require.Equal(t, [][3]string{
				{"user.created", "users", "user_created"}, {"users.user_deleted", "users", "user_deleted"}, {"message:created", "threads", "message_created"},
			}, s.names)
			require.Equal(t, []uuid.UUID{user, user, message}, s.ids)

			_, err = threads.Consume(t.Context(), pool, consume.FromKafka(c.received(topic)[0].Headers, c.received(topic)[0].Value))
			require.ErrorIs(t, err, consume.ErrUnknownTopic)
		})
	}
}
