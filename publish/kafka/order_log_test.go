package kafka_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// TestLogPastDeadLetters: events of a log that are too large for the cluster become dead letters. All others arrive once, in
// the order of their keys, although a lease takes several calls.
func TestLogPastDeadLetters(t *testing.T) {
	t.Parallel()
	type step struct {
		Key  string `json:"key"`
		N    int    `json:"n"`
		Text string `json:"text"`
	}
	stepped := outbox.NewTopic[step](outbox.TopicSpec{Namespace: "relay", Name: "stepped", Version: 1, Log: true, Keys: func(v any) outbox.Keys {
		s := v.(*step)
		return outbox.Keys{Partition: eventkey.NewKey(eventkey.StringPart("key", s.Key))}
	}})
	var noise strings.Builder // does not compress below the limit of the cluster
	for noise.Len() < 400_000 {
		noise.WriteString(uuid.NewString())
	}
	dies := func(s step) bool { return s.N == 11 || s.N == 60 }
	for name, size := range map[string]struct{ keys, each int }{"one key": {1, 1600}, "twenty keys": {20, 100}} {
		for mode, park := range map[string]bool{"block": false, "park_key": true} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Database(t)
				c := newCluster(t)
				var steps []step
				dead := 0
				for n := range size.each {
					for k := range size.keys {
						s := step{Key: fmt.Sprint("key ", k), N: n + 1}
						if dies(s) {
							s.Text = noise.String()
							dead++
						}
						steps = append(steps, s)
					}
				}
				require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					_, err := stepped.EnqueueMany(t.Context(), tx, steps)
					return err
				}))
				l, err := listener.New(pool, listener.Spec{Name: "relay", ParkKeys: park}, listener.Config{
					BatchSize: 1000, Logger: slog.New(slog.DiscardHandler), Publishers: map[string]publish.Publisher{"kafka": c.publisher(t)},
				}, listener.Publish(stepped, publish.Publication{Broker: "kafka", Destination: topic}))
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				var total listener.Report
				for total.Delivered+total.Dead < len(steps) {
					require.NoError(t, ctx.Err(), "%+v", total)
					r, err := l.Drain(ctx)
					require.NoError(t, err)
					total.Delivered, total.Dead = total.Delivered+r.Delivered, total.Dead+r.Dead
				}
				require.Equal(t, dead, total.Dead)

				last := make(map[string]int)
				records := c.received(topic)
				for _, r := range records {
					var s step
					require.NoError(t, json.Unmarshal(r.Value, &s))
					for last[s.Key]++; dies(step{N: last[s.Key]}); {
						last[s.Key]++
					}
					require.Equal(t, last[s.Key], s.N, "the next of %s", s.Key)
				}
				require.Len(t, records, len(steps)-dead)
			})
		}
	}
}
