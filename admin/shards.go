package admin

import (
	"cmp"
	"slices"
)

// urgency has the states of a shard, the worst one first.
var urgency = []ListenerState{
	ListenerRestored, ListenerPaused, ListenerBlocked, ListenerLagging, ListenerResharding, ListenerWaiting,
	ListenerRunning, ListenerIdle,
}

// SumShards returns one status per listener, by name, of the shards that Listeners returns. Unread, ParkedKeys,
// ParkedEvents and DeadLetters are sums, Lag is the longest one, and UnhandledVersions are those of all shards. The
// state, and everything else, is that of the shard with the worst state. It does not change shards.
func SumShards(shards []ListenerStatus) []ListenerStatus {
	sums := []ListenerStatus{}
	for _, s := range shards {
		i := slices.IndexFunc(sums, func(sum ListenerStatus) bool { return sum.Listener == s.Listener })
		if i < 0 {
			sums = append(sums, s)
			continue
		}
		was := sums[i]
		sum := was
		if slices.Index(urgency, s.State) < slices.Index(urgency, was.State) {
			sum = s
		}
		sum.Unread, sum.Lag, sum.Alarm = was.Unread+s.Unread, max(was.Lag, s.Lag), was.Alarm || s.Alarm
		sum.DeadLetters = was.DeadLetters + s.DeadLetters
		sum.ParkedKeys, sum.ParkedEvents = was.ParkedKeys+s.ParkedKeys, was.ParkedEvents+s.ParkedEvents
		sum.UnhandledVersions = slices.Clone(was.UnhandledVersions)
		for _, v := range s.UnhandledVersions {
			if !slices.Contains(sum.UnhandledVersions, v) {
				sum.UnhandledVersions = append(sum.UnhandledVersions, v)
			}
		}
		sums[i] = sum
	}
	slices.SortStableFunc(sums, func(x, y ListenerStatus) int { return cmp.Compare(x.Listener, y.Listener) })
	return sums
}
