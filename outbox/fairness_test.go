package outbox_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestFairnessOfATopicIsThatOfItsEvents: every way to enqueue passes the fairness of the topic on, and refuses one that does
// not fit the event before anything is sent.
func TestFairnessOfATopicIsThatOfItsEvents(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	owned := func(any) outbox.Keys { return outbox.Keys{TenantID: outbox.Tenant(runtimetest.TenantA)} }
	for name, c := range map[string]struct {
		spec outbox.TopicSpec
		want string // of the error; empty when there is none
	}{
		"none":              {outbox.TopicSpec{}, ""},
		"none, with tenant": {outbox.TopicSpec{Keys: owned}, ""},
		"tenant":            {outbox.TopicSpec{Fairness: outbox.FairnessTenant, Keys: owned}, ""},
		"no keys":           {outbox.TopicSpec{Fairness: outbox.FairnessTenant}, `fairness "tenant" needs the tenant of the event`},
		"no tenant in keys": {outbox.TopicSpec{Fairness: outbox.FairnessTenant, Keys: func(any) outbox.Keys { return outbox.Keys{} }},
			`fairness "tenant" needs the tenant of the event`},
		"zero tenant": {outbox.TopicSpec{Fairness: outbox.FairnessTenant, Keys: func(any) outbox.Keys {
			return outbox.Keys{TenantID: outbox.Tenant(uuid.Nil)}
		}}, "tenant is the zero UUID"},
		"log":     {outbox.TopicSpec{Fairness: outbox.FairnessTenant, Keys: owned, Log: true}, `fairness "tenant": listeners get the events of a log topic in order`},
		"unknown": {outbox.TopicSpec{Fairness: "tennant", Keys: owned}, `fairness "tennant" is not a valid fairness: use "tenant"`},
	} {
		c.spec.Namespace, c.spec.Name = runtimetest.Namespace, "ping"
		topic := outbox.NewTopic[int](c.spec).Untyped()
		require.Equal(t, c.spec.Fairness, topic.Spec().Fairness, name)
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			check := func(err error) {
				if c.want == "" {
					require.NoError(t, err, name)
				} else {
					require.ErrorContains(t, err, c.want, name)
				}
			}
			_, err := topic.Enqueue(t.Context(), tx, 1)
			check(err)
			_, err = topic.EnqueueMany(t.Context(), tx, []int{1, 2})
			check(err)
			var b pgx.Batch
			_, err = topic.EnqueueInBatch(&b, 1)
			check(err)
			require.Equal(t, c.want == "", b.Len() == 1, name)
			require.NoError(t, tx.SendBatch(t.Context(), &b).Close(), "%s: the transaction can still be used", name)
		})
	}
}
