package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// TestRoomForTurns: while handlers return soon, up to four times as many events that have turns may be in flight; not after a
// claim has met a limit that is reached.
func TestRoomForTurns(t *testing.T) {
	t.Parallel()
	a, now := turnAt(7, "a"), start
	for _, state := range []TurnState{TurnFull, TurnIdle} {
		g := growth{room: 10}
		claim := func(after time.Duration, n int, ends ...TurnEnd) int {
			now = now.Add(after)
			g.onClaim(now, &Found{Rows: make([]Seen, n), TurnsFound: TurnsFound{Turns: ends}})
			return g.size(10)
		}
		require.Equal(t, 10, claim(0, 20), "nobody knows how fast handlers are")
		require.Equal(t, 10, claim(growthTime/2, 10))
		require.Equal(t, 20, claim(growthTime/2, 10, ended(a, TurnMore), ended(a, TurnBusy)))
		require.Equal(t, 20, claim(growthTime/2, 39))
		require.Equal(t, 40, claim(growthTime/2, 1))
		require.Equal(t, 40, claim(growthTime, 40), "no more than that")
		require.Equal(t, 40, claim(growthTime, 39))
		require.Equal(t, 20, claim(1, 1), "handlers have become slow")
		require.Equal(t, 10, claim(growthTime+1, 40), "and stay so")
		require.Equal(t, 10, claim(growthTime+1, 40))
		require.Equal(t, 20, claim(growthTime, 20))
		require.Equal(t, 10, claim(0, 20, ended(a, state)))
		require.Equal(t, 10, claim(growthTime, 20))
		now = now.Add(growthPause - 2*growthTime)
		claim(0, 20)
		require.Equal(t, 20, claim(growthTime, 20), "the limit was reached a while ago")
	}
}

// TestClaimsOfTurnsGrow: a core whose batches may grow has more events in flight, in larger claims.
func TestClaimsOfTurnsGrow(t *testing.T) {
	t.Parallel()
	for grows, most := range map[bool]int{false: 10, true: 40} {
		d := drive(t, takesTurns(true), func(c *Config) { c.Topics, c.Grows, c.Concurrency = c.Topics[:1], grows, 10 })
		d.first()
		inFlight, size := 0, 0
		for i := range 20 {
			p := d.passes[0]
			if i > 0 { // the first takes all that there is room for
				size = max(size, p.want)
			}
			d.claimed(p, d.tasks("handled", p.want, inTurn("a"))...)
			inFlight = max(inFlight, d.inFlight)
			var begun []*Task
			for _, task := range d.leases.tasks {
				if task.begun && !task.finished {
					begun = append(begun, task)
				}
			}
			d.reported(errclass.ClassDone, begun...)
		}
		require.Equal(t, most, inFlight)
		require.Equal(t, most/2, size)
	}
}
