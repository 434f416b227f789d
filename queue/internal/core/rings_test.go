package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// TestWhenEnqueuesNeedNotRing: when many events were found lately, when there is a backlog, and when half of the room is
// taken.
func TestWhenEnqueuesNeedNotRing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		found, inFlight int
		backlog         bool
		after           time.Duration // since the others were found
		busy            bool
	}{
		"few":               {found: 1},
		"as many as few":    {found: fewEvents},
		"many":              {found: fewEvents + 1, busy: true},
		"many in two parts": {found: fewEvents, after: fewWithin + 1},
		"a backlog":         {found: 1, backlog: true, busy: true},
		"room":              {found: 1, inFlight: 4},
		"half of the room":  {found: 1, inFlight: 5, busy: true},
	} {
		d := drive(t)
		d.foundSince, d.found = d.now, 0
		if c.after > 0 {
			require.False(t, d.isBusy(d.now, 1), name)
		}
		d.backlog, d.inFlight = c.backlog, c.inFlight
		require.Equal(t, c.busy, d.isBusy(d.now.Add(c.after), c.found), name)
	}
}

// TestRingBesideAPass: a claim follows a ring although it is for less than half a batch, which a pass under way keeps back
// otherwise.
func TestRingBesideAPass(t *testing.T) {
	t.Parallel()
	d := drive(t)
	tasks := d.tasks("handled", 8)
	d.claimed(d.first(), tasks...)
	d.asleepFrom()
	d.reported(errclass.ClassDone, tasks[0])
	require.Nil(t, the[*Pass](d).Claim)
	d.requestClaim()
	d.step(0, Tick{})
	none[*Pass](d)
	d.step(0, Woken{})
	require.Equal(t, 2, the[*Pass](d).Claim.Size)
}

// TestRingBesideAClaimOfTurns: claims of events that have turns follow each other, so that a ring leaves no room for another.
func TestRingBesideAClaimOfTurns(t *testing.T) {
	t.Parallel()
	for active, size := range map[bool]int{false: 5, true: 10} {
		d := drive(t, func(c *Config) { c.Topics[0].Turns = active })
		d.step(0, Woken{})
		require.Equal(t, size, the[*Pass](d).Claim.Size)
	}
}

// TestWalkGoesOnBesideLooks: a look that has found nothing in its piece says nothing of where the main walk is, which goes
// on at once.
func TestWalkGoesOnBesideLooks(t *testing.T) {
	t.Parallel()
	d := drive(t)
	p := d.first()
	require.True(t, p.look)
	ends := map[int32]Place{}
	for _, lane := range d.claims.walk.lanes {
		ends[lane] = Place{Due: d.now.Add(-time.Hour)}
	}
	d.step(time.Millisecond, &PassDone{Pass: p, Found: Found{At: d.now, Took: time.Millisecond, Ends: ends}})
	require.False(t, the[*Pass](d).look)
}

// TestEnqueuesThatRingForNobody: the doorbell is told that enqueues need not ring only where it was asked for rings.
func TestEnqueuesThatRingForNobody(t *testing.T) {
	t.Parallel()
	d := drive(t)
	d.claimed(d.first(), d.tasks("handled", 10)...)
	require.True(t, d.isBusy(d.now, 0))
	none[AskBell](d)
}

// TestFreedWithNobodyWaiting: the settled event of a turn makes room that no other turn of its lane waits for.
func TestFreedWithNobodyWaiting(t *testing.T) {
	t.Parallel()
	w := turned()
	w.shared[7] = true
	w.fill(turnAt(8, "a"), time.Time{})
	w.freed(turnAt(7, "b"))
	require.Empty(t, w.known)
}

// TestLastAttemptsOfABatch: they count, unless they were made together with others and failed with them.
func TestLastAttemptsOfABatch(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{false, true} {
		d := drive(t, asBatched(2, 0))
		task := d.tasks("handled", 1, func(t *Task) { t.Attempt = t.MaxAttempts })[0]
		d.claimed(d.first(), task)
		task.Shared = shared
		d.reportedBatch(all[*RunBatch](d)[0], errclass.ClassFailed, task)
		require.Equal(t, shared, task.unstarted)
	}
}
