package outbox_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

type fillInner struct {
	Labels map[string]string `json:"labels"`
	At     time.Time         `json:"at"`
}

type fillPayload struct {
	Tags     []string             `json:"tags"`
	Counts   map[string]int       `json:"counts"`
	Blob     []byte               `json:"blob"`
	Optional []string             `json:"optional,omitempty"`
	Raw      json.RawMessage      `json:"raw"`
	ID       uuid.UUID            `json:"id"`
	Inner    fillInner            `json:"inner"`
	List     []fillInner          `json:"list"`
	Map      map[string]fillInner `json:"map"`
	Pointer  *fillInner           `json:"pointer,omitempty"`
	Nested   [][]fillInner        `json:"nested"`
	Self     *fillPayload         `json:"self,omitempty"`
	//lint:ignore U1000 a payload may have such a field
	hidden []string
}

// TestNilListsAndMapsGoOutEmpty: a required list, map or bytes that is nil is written as an empty one, at any depth, and
// the caller's payload stays as it is.
func TestNilListsAndMapsGoOutEmpty(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := outbox.NewTopic[fillPayload](outbox.TopicSpec{Namespace: "test", Name: "filled", Version: 1})
	written := func(p fillPayload) map[string]any {
		var receipt outbox.Receipt
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
			receipt, err = topic.Enqueue(t.Context(), tx, p)
			return err
		}))
		return pgtest.Value[map[string]any](t, pool, "SELECT payload FROM testing.events WHERE id = $1", receipt.ID)
	}
	inner := map[string]any{"labels": map[string]any{}, "at": "0001-01-01T00:00:00Z"}
	require.Equal(t, map[string]any{
		"tags": []any{}, "counts": map[string]any{}, "blob": "", "raw": nil, "id": uuid.Nil.String(), "inner": inner,
		"list": []any{}, "map": map[string]any{}, "nested": []any{},
	}, written(fillPayload{}))

	p := fillPayload{
		Tags: []string{"a"}, Counts: map[string]int{"a": 1}, Blob: []byte("x"), Raw: json.RawMessage("[1]"),
		List: make([]fillInner, 2), Map: map[string]fillInner{"a": {}}, Pointer: &fillInner{}, Nested: [][]fillInner{{{}}},
	}
	got := written(p)
	require.Equal(t, []any{inner, inner}, got["list"])
	require.Equal(t, map[string]any{"a": inner}, got["map"])
	require.Equal(t, inner, got["pointer"])
	require.Equal(t, []any{[]any{inner}}, got["nested"])
	require.Equal(t, []any{[]any{"a"}, map[string]any{"a": 1.0}, "eA==", []any{1.0}}, []any{got["tags"], got["counts"], got["blob"], got["raw"]})
	for _, mine := range []fillInner{p.Inner, p.List[0], p.List[1], p.Map["a"], *p.Pointer, p.Nested[0][0]} {
		require.Nil(t, mine.Labels, "what is the caller's is not written to")
	}

	// A type that holds itself is not looked into.
	self := written(fillPayload{Self: &fillPayload{}})["self"].(map[string]any)
	require.Nil(t, self["tags"])
}

// BenchmarkFill looks for nil lists in a payload that has none, and in one that has.
func BenchmarkFill(b *testing.B) {
	full := fillPayload{
		Tags: []string{"a"}, Counts: map[string]int{}, Blob: []byte{}, Inner: fillInner{Labels: map[string]string{}},
		List: []fillInner{}, Map: map[string]fillInner{}, Nested: [][]fillInner{},
	}
	for name, p := range map[string]any{"full": &full, "nil": &fillPayload{}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = outbox.Filled(p)
			}
		})
	}
}
