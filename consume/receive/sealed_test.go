package receive_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/seal"
)

type secretCount struct {
	Key string `json:"key" outbox:"sealed"`
	N   int    `json:"n"`
}

// late is a keyring that gets its keys later.
type late struct{ ring atomic.Pointer[seal.Ring] }

func (l *late) SealingKey(ctx context.Context, tenant uuid.NullUUID) (*seal.Key, error) {
	return l.ring.Load().SealingKey(ctx, tenant)
}

func (l *late) OpeningKey(ctx context.Context, tenant uuid.NullUUID, id string) (*seal.Key, error) {
	return l.ring.Load().OpeningKey(ctx, tenant, id)
}

// TestReceiveWaitsForAKey: messages whose key is not there wait at the broker, no attempt is counted, and the log names
// the key. They are applied when it is there. One that does not open is a dead letter, which shows nothing.
func TestReceiveWaitsForAKey(t *testing.T) {
	t.Parallel()
	pool := database(t)
	log := runtimetest.NewLogSpy()
	ib, err := inbox.New(inbox.Config{Group: "counts"})
	require.NoError(t, err)
	topic := consume.NewTopic[secretCount](consume.TopicSpec{Namespace: "test", Name: "counted"})
	c, err := consume.New(ib, consume.Handle(topic, 1, func(_ int, ctx context.Context, tx pgx.Tx, d consume.Delivery[secretCount]) error {
		_, err := tx.Exec(ctx, "INSERT INTO effects (event, key, n) VALUES ($1, $2, $3)", d.ID, d.Payload.Key, d.Payload.N)
		return err
	}))
	require.NoError(t, err)
	k1, err := seal.Parse("k1:" + strings.Repeat("A", 43))
	require.NoError(t, err)
	both, err := seal.Parse("k2:" + strings.Repeat("B", 43) + " k1:" + strings.Repeat("A", 43))
	require.NoError(t, err)
	keys := &late{}
	keys.ring.Store(k1)
	var ms []receive.Message
	for n, ring := range []*seal.Ring{k1, both, k1} {
		m := message("a", n+1)
		key, err := ring.SealingKey(t.Context(), uuid.NullUUID{})
		require.NoError(t, err)
		box, err := key.For(uuid.MustParse(m.Attributes["id"]), uuid.NullUUID{})
		require.NoError(t, err)
		path := "/key"
		if n == 2 {
			path = "/other"
		}
		m.Body, err = json.Marshal(map[string]any{"key": box.Seal(path, []byte(`"canary"`)), "n": n + 1})
		require.NoError(t, err)
		ms = append(ms, m)
	}
	r, err := receive.New(pool, c.WithKeyring(keys), receive.Config{Logger: log.Logger()})
	require.NoError(t, err)
	type answer struct {
		outcomes []receive.Outcome
		err      error
	}
	answers := make(chan answer, 1)
	go func() {
		outcomes, err := r.Receive(t.Context(), ms)
		answers <- answer{outcomes, err}
	}()
	log.Await(t, "it is sealed with key k2: the keyring has no such key")
	require.Zero(t, kept(t, pool, "parked")+kept(t, pool, "dead"))
	keys.ring.Store(both)
	got := pgtest.Receive(t, answers, "the outcomes")
	require.NoError(t, got.err)
	require.Equal(t, []receive.Outcome{receive.Applied, receive.Applied, receive.Dead}, got.outcomes)
	requireCounted(t, pool, 2, "canary")
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.inbox_messages WHERE attempts = 0 AND status = 'dead'"))
	require.Contains(t, pgtest.Value[string](t, pool, "SELECT error FROM outbox.inbox_messages"),
		"field key: it does not open with key k1: it was altered, or moved from another event, field or tenant")
	require.NotContains(t, pgtest.Value[string](t, pool, "SELECT inbox_messages::text || convert_from(body, 'UTF8') FROM outbox.inbox_messages"), "canary")
	require.NotContains(t, log.String(), "canary")
}
