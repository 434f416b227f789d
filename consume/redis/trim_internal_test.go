package redis

import (
	"fmt"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TestRemovedEntriesAreCountedOnce: each loss is counted once, although Redis does not count lost entries as read.
func TestRemovedEntriesAreCountedOnce(t *testing.T) {
	t.Parallel()
	var tr trimmed
	for i, c := range []struct{ added, length, read, last, want int64 }{
		{10, 10, 0, 0, 0},
		{10, 8, 0, 0, 0}, // before the group read anything
		{10, 8, 5, 5, 0},
		{10, 2, 5, 5, 3}, // 6, 7 and 8
		{10, 2, 5, 5, 0},
		{10, 2, 6, 9, 0},
		{15, 1, 6, 9, 5},   // 10 to 14
		{15, 1, 7, 15, 0},  // everything was read, and Redis counts 8 too few
		{15, 0, 7, 15, 0},  // what was read is removed
		{20, 5, 7, 15, 0},  // 16 to 20 are new
		{20, 4, 7, 15, 1},  // 16
		{20, 0, 7, 15, 4},  // all of them
		{20, 0, 20, 20, 0}, // a later Redis counts what it passes
		{0, 0, 0, 0, 0},    // before Redis 7
	} {
		about := &goredis.XInfoStream{EntriesAdded: c.added, Length: c.length, LastGeneratedID: fmt.Sprintf("7-%d", c.added)}
		if c.length > 0 {
			about.FirstEntry.ID = fmt.Sprintf("7-%d", c.added-c.length+1)
		}
		group := goredis.XInfoGroup{EntriesRead: c.read, LastDeliveredID: fmt.Sprintf("7-%d", c.last)}
		require.Equal(t, c.want, tr.note(about, group), "line %d", i)
	}
	tr = trimmed{}
	passed := goredis.XInfoGroup{EntriesRead: 7, LastDeliveredID: "7-18"}
	about := &goredis.XInfoStream{EntriesAdded: 20, Length: 5, LastGeneratedID: "7-20", FirstEntry: goredis.XMessage{ID: "7-16"}}
	require.Zero(t, tr.note(about, passed), "a loss that an earlier process has passed")
	tr = trimmed{}
	about = &goredis.XInfoStream{EntriesAdded: 20, Length: 12, LastGeneratedID: "7-20", FirstEntry: goredis.XMessage{ID: "7-9"}}
	require.Zero(t, tr.note(about, passed))
	tr.reachedEnd(about, passed, 2) // 19 and 20. Redis counts 9 entries as read, so 11 were lost before
	passed = goredis.XInfoGroup{EntriesRead: 9, LastDeliveredID: "7-20"}
	about = &goredis.XInfoStream{EntriesAdded: 21, Length: 1, LastGeneratedID: "7-21", FirstEntry: goredis.XMessage{ID: "7-21"}}
	require.Zero(t, tr.note(about, passed), "entries are removed that were read")
	require.True(t, idOf("9-1").before(idOf("10-0")) && idOf("9-1").before(idOf("9-10")) && !idOf("9-1").before(idOf("9-1")))
}
