package kafka_test

import (
	"strconv"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/kafka"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestLateDuplicateOfAnOlderVersion: a copy of the first event of a key comes after the second one. The inbox knows its id.
// When that record is pruned, the entity version still keeps it out, and without a version it is applied again. A group that
// starts after the topic was compacted gets only the late copy: nothing on the side of consumers helps it.
func TestLateDuplicateOfAnOlderVersion(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		versions bool
		pruned   bool
		outcome  receive.Outcome // of the late copy
		effects  []int
	}{
		"recorded":                {false, false, receive.Duplicate, []int{1, 2}},
		"recorded, with versions": {true, false, receive.Duplicate, []int{1, 2}},
		"pruned":                  {false, true, receive.Applied, []int{1, 2, 1}},
		"pruned, with versions":   {true, true, receive.Skipped, []int{1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, c := database(t), newCluster(t, 1)
			cl, err := kgo.NewClient(kgo.SeedBrokers(c.addrs...), kgo.DisableClientMetrics())
			require.NoError(t, err)
			defer cl.Close()
			compact := "compact"
			_, err = kadm.NewClient(cl).CreateTopic(t.Context(), 1, 1, map[string]*string{"cleanup.policy": &compact}, "compacted")
			require.NoError(t, err)

			var made []*kgo.Record // so that the late copy has the id of the first event
			for n := range 2 {
				r := record("a", n+1)
				r.Topic = "compacted"
				if test.versions {
					for name, value := range map[string]string{"entitytype": "counter", "entityid": "a", "entityversion": strconv.Itoa(n + 1)} {
						r.Headers = append(r.Headers, kgo.RecordHeader{Key: "ce_" + name, Value: []byte(value)})
					}
				}
				made = append(made, r)
			}
			copyOf := func(r *kgo.Record) *kgo.Record {
				return &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers}
			}
			var last sync.Map
			consumeAll := func(pool *pgxpool.Pool, group string) {
				t.Helper()
				cfg := c.config()
				cfg.Topics = []string{"compacted"}
				cfg.Receive.Observer = &receive.Observer{Settled: func(s receive.Settled) { last.Store(group, s.Outcome) }}
				ib, err := inbox.New(inbox.Config{Group: group})
				require.NoError(t, err)
				consumer, err := consume.New(ib, consume.Handle(countedTopic, &effects{}, (*effects).ConsumeCounted))
				require.NoError(t, err)
				r, err := kafka.New(pool, consumer, cfg)
				require.NoError(t, err)
				stop := start(t, r)
				awaitCaughtUp(t, r)
				require.NoError(t, stop())
			}
			effectsOf := func(pool *pgxpool.Pool) []int {
				return pgtest.Value[[]int](t, pool, "SELECT array_agg(n ORDER BY no) FROM effects WHERE key = 'a'")
			}

			c.produce(copyOf(made[0]), copyOf(made[1]))
			consumeAll(pool, group)
			if test.pruned {
				pgtest.Execute(t, pool, "DELETE FROM outbox.processed_events")
			}
			c.produce(copyOf(made[0]))
			consumeAll(pool, group)
			outcome, _ := last.Load(group)
			require.Equal(t, test.outcome, outcome)
			require.Equal(t, test.effects, effectsOf(pool))

			behind := record("b", 1) // the cleaner leaves the latest batch alone
			behind.Topic = "compacted"
			c.produce(behind)
			c.Compact()
			fresh := database(t)
			consumeAll(fresh, "newcomers")
			require.Equal(t, []int{1}, effectsOf(fresh))
		})
	}
}
