package queue

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// drawValue returns a random JSON value of Go types.
func drawValue(t *rapid.T, depth int) any {
	kinds := 6
	if depth > 0 {
		kinds = 8
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{1<<53 + 1, -1<<53 - 1, math.MaxInt64, math.MinInt64, 0})).Draw(t, "int")
	case 1:
		return rapid.Float64().Filter(func(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }).Draw(t, "float")
	case 2:
		return strings.ReplaceAll(rapid.String().Draw(t, "string"), "\x00", "")
	case 3:
		return rapid.Bool().Draw(t, "bool")
	case 4:
		return nil
	case 5:
		return rapid.Uint64().Draw(t, "uint")
	case 6:
		list := make([]any, rapid.IntRange(0, 4).Draw(t, "len"))
		for i := range list {
			list[i] = drawValue(t, depth-1)
		}
		return list
	}
	object := map[string]any{}
	for range rapid.IntRange(0, 4).Draw(t, "len") {
		object[strings.ReplaceAll(rapid.String().Draw(t, "key"), "\x00", "")] = drawValue(t, depth-1)
	}
	return object
}

// A payload that Go can encode and that check accepts reaches the handler without losing a digit.
func TestPayloadRoundTripIsExact(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	s, err := NewStore(pool, StoreConfig{Namespace: "test"})
	require.NoError(t, err)
	rapid.Check(t, func(rt *rapid.T) {
		value := drawValue(rt, 3)
		payload, err := json.Marshal(value)
		require.NoError(rt, err)
		require.NoError(rt, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := outbox.Enqueue(t.Context(), tx, "", outbox.Message{Namespace: "test", Topic: "any", Payload: payload})
			return err
		}), "%s", payload)
		claimed, err := s.Claim(t.Context(), ClaimConfig{})
		require.NoError(rt, err)
		require.Len(rt, claimed, 1)
		_, err = s.Ack(t.Context(), claimed...)
		require.NoError(rt, err)
		require.Equal(rt, pgtest.ExactJSON(t, payload), pgtest.ExactJSON(t, claimed[0].Payload), "%s", payload)
		if n, ok := value.(int64); ok {
			var got int64
			require.NoError(rt, json.Unmarshal(claimed[0].Payload, &got))
			require.Equal(rt, n, got)
		}
		if f, ok := value.(float64); ok {
			var got float64
			require.NoError(rt, json.Unmarshal(claimed[0].Payload, &got))
			require.InDelta(rt, f, got, 0, "bit for bit except for the sign of zero")
		}
	})
}

func TestIntegersBeyond2To53ReachTheHandlerExactly(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	type numbers struct {
		A, B int64
		C    float64
		D    json.RawMessage
		E    map[string]int64
	}
	pool := pgtest.Database(t)
	topic := outbox.NewTopic[numbers](outbox.TopicSpec{Namespace: "test", Name: "numbers"})
	want := numbers{A: math.MaxInt64, B: math.MinInt64, C: 0.1, D: []byte("123456789012345678901234567890.5"), E: map[string]int64{"x": 1<<53 + 1}}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := topic.Enqueue(t.Context(), tx, want)
		return err
	}))
	s, err := NewStore(pool, StoreConfig{Namespace: "test"})
	require.NoError(t, err)
	claimed, err := s.Claim(t.Context(), ClaimConfig{})
	require.NoError(t, err)
	require.Len(t, claimed, 1)
	var got numbers
	require.NoError(t, json.Unmarshal(claimed[0].Payload, &got))
	require.Equal(t, want, got)
	require.Contains(t, string(claimed[0].Payload), fmt.Sprint(int64(math.MinInt64)))
}
