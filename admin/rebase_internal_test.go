package admin

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// Events that the same cursors have missed share a mark. If there are too few marks, several sets share the last one.
func TestRebaseMarks(t *testing.T) {
	t.Parallel()
	missed := []queries.RebaseMissedRow{
		{Seq: 1, Places: []int32{0}}, {Seq: 2, Places: []int32{0, 2}}, {Seq: 5, Places: []int32{0}}, {Seq: 7, Places: []int32{1}},
	}
	m := markMissed(missed, 700)
	require.Equal(t, marking{
		seqs: []int64{1, 2, 5, 7}, xids: []int64{4, 5, 4, 6}, last: 6, of: map[int32][]int64{0: {4, 5}, 1: {6}, 2: {5}},
	}, m)
	m = markMissed(missed, 2)
	require.Equal(t, marking{
		seqs: []int64{1, 2, 5, 7}, xids: []int64{4, 5, 4, 5}, last: 5, of: map[int32][]int64{0: {4, 5}, 1: {5}, 2: {5}},
	}, m)
}

func TestRebaseSnapshots(t *testing.T) {
	t.Parallel()
	s, err := parseSnapshot("700:705:700,703")
	require.NoError(t, err)
	require.Equal(t, "700:705:700,703", s.without(nil))
	require.Equal(t, "4:705:4,9,700,703", s.without([]int64{4, 9}))
	s, err = parseSnapshot("700:700:")
	require.NoError(t, err)
	require.Equal(t, "700:700:", s.without(nil))
	require.Equal(t, "4:700:4", s.without([]int64{4}))
	for _, bad := range []string{"", "1:2", "x:2:", "1:x:"} {
		_, err := parseSnapshot(bad)
		require.Error(t, err, bad)
	}
}
