package core

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// TestStopDuringAPass: what a claim takes that was under way at the end is released, and so is what waits. Running
// handlers are waited for.
func TestStopDuringAPass(t *testing.T) {
	t.Parallel()
	d := drive(t)
	tasks := d.tasks("handled", 4)
	d.claimed(d.first(), tasks...)
	claim := the[*Pass](d)
	d.step(0, Stop{})
	require.Equal(t, tasks[2:], the[*Pass](d).Settle, "those that were not started")
	release := the[*Pass](d)
	late := d.tasks("handled", 2)
	d.claimed(claim, late...)
	require.Equal(t, late, the[*Pass](d).Settle, "claimed at the end")
	last := the[*Pass](d)
	d.claimed(release)
	d.claimed(last)
	d.step(0, Stop{})
	require.Empty(t, d.out, "it waits for handlers")
	d.reported(errclass.ClassDone, tasks[:2]...)
	d.claimed(the[*Pass](d))
	require.Equal(t, &End{}, the[*End](d))
	require.Empty(t, d.step(0, Woken{}), "it is over")
}

// TestStopWithoutADatabase: what could not be settled is tried again until the end, and counted then.
func TestStopWithoutADatabase(t *testing.T) {
	t.Parallel()
	d := drive(t)
	tasks := d.tasks("handled", 1)
	d.claimed(d.first(), tasks...)
	d.claimed(the[*Pass](d))
	d.reported(errclass.ClassDone, tasks...)
	d.failed(the[*Pass](d))
	none[*Pass](d)
	d.step(0, Stop{})
	d.failed(the[*Pass](d)) // at once, in spite of the pause
	none[*Pass](d)
	d.step(d.timerAt.Sub(d.now), Tick{})
	p := the[*Pass](d)
	d.step(0, GiveUp{})
	none[*End](d) // a pass is under way
	d.step(0, DatabaseOver{})
	none[*End](d)
	d.failed(p)
	require.Equal(t, &End{Unsettled: 1, Err: errDown}, the[*End](d))
}

// TestGiveUp: handlers that do not return are named, and what is finished is settled before.
func TestGiveUp(t *testing.T) {
	t.Parallel()
	d := drive(t)
	tasks := d.tasks("handled", 2)
	d.claimed(d.first(), tasks...)
	d.claimed(the[*Pass](d))
	d.step(0, Stop{})
	d.reported(errclass.ClassDone, tasks[0])
	p := the[*Pass](d)
	d.step(0, GiveUp{})
	none[*End](d)
	d.claimed(p)
	require.Equal(t, &End{Running: tasks[1:]}, the[*End](d))
}

// TestStopDuringRouting: what gets its destination after the end is not sent.
func TestStopDuringRouting(t *testing.T) {
	t.Parallel()
	d := drive(t)
	tasks := d.tasks("routed", 1)
	d.claimed(d.first(), tasks...)
	claim := the[*Pass](d)
	route := the[*Route](d)
	d.step(0, Stop{})
	d.claimed(claim)
	d.step(0, &Routed{Route: route, Destinations: []Destined{{"a", tasks}}})
	none[*Send](d)
	d.claimed(the[*Pass](d))
	require.Equal(t, &End{}, the[*End](d))
}

// drained drives a drain to its end: handlers deliver what each of claims takes.
func drained(d *driven, claims ...[]*Task) *End {
	d.t.Helper()
	d.step(0, Started{})
	for _, tasks := range claims {
		d.claimed(the[*Pass](d), tasks...)
		for _, task := range tasks {
			none[*Pass](d) // a batch is handled before the next claim
			d.reported(errclass.ClassDone, task)
		}
	}
	for len(all[*Pass](d)) > 0 {
		d.claimed(the[*Pass](d))
	}
	if len(all[Sweep](d)) > 0 {
		d.step(0, Swept{})
	}
	return the[*End](d)
}

// TestDrain: it ends when a claim that settles the last batch has found nothing at the end of all lanes.
func TestDrain(t *testing.T) {
	t.Parallel()
	d := drive(t, asDrain)
	require.Equal(t, &End{Drained: DrainDone}, drained(d, d.tasks("handled", 2), d.tasks("handled", 3)))
	require.Empty(t, d.leases.tasks)
	d = drive(t, asDrain, func(c *Config) { c.Limit = 5 })
	require.Equal(t, 5, d.first().Claim.Size)
	d = drive(t, asDrain, func(c *Config) { c.Limit = 5 })
	require.Equal(t, &End{Drained: DrainLimit}, drained(d, d.tasks("handled", 2), d.tasks("handled", 3)))

	d = drive(t, asDrain, func(c *Config) { c.Pauses = PausesOf(true, nil) })
	d.step(0, Started{})
	require.Len(t, all[Sweep](d), 1, "everything is paused")
	d.step(0, Stop{})
	none[*End](d) // the sweep goes on
	d.step(0, Swept{Err: errDown})
	require.Equal(t, &End{Drained: DrainDone, Err: errDown}, the[*End](d))
}

// TestDrainSettlesBesideSlowHandlers: what is finished is settled before its lease runs out, although another event of its
// batch still runs. If that fails, it is tried again after a pause, and the drain goes on.
func TestDrainSettlesBesideSlowHandlers(t *testing.T) {
	t.Parallel()
	d := drive(t, asDrain)
	d.step(0, Started{})
	tasks := d.tasks("handled", 2)
	d.claimed(the[*Pass](d), tasks...)
	d.reported(errclass.ClassDone, tasks[0])
	none[*Pass](d)
	d.step(d.cfg.LeaseDuration/3, Tick{})
	p := the[*Pass](d)
	require.Equal(t, tasks[:1], p.Settle)
	require.Nil(t, p.Claim)
	d.failed(p)
	none[*Pass](d)
	none[*End](d)
	d.step(5*time.Second, Tick{})
	p = the[*Pass](d)
	require.Equal(t, tasks[:1], p.Settle)
	d.step(time.Millisecond, &PassDone{Pass: p})
	none[*Pass](d)
	none[*End](d)
	d.reported(errclass.ClassDone, tasks[1])
	d.step(0, &PausesRead{Pauses: NoPauses})
	p = the[*Pass](d)
	require.Equal(t, tasks[1:], p.Settle)
	require.NotNil(t, p.Claim)
}

// TestDrainWalksToTheEnd: a claim that finds nothing in its pieces is not the last one.
func TestDrainWalksToTheEnd(t *testing.T) {
	t.Parallel()
	d := drive(t, asDrain)
	p := d.first()
	d.step(0, &PassDone{Pass: p, Found: Found{At: d.now, Ends: map[int32]Place{0: {Due: d.now, ID: tenant}}}})
	none[Sweep](d)
	p = the[*Pass](d)
	i := slices.IndexFunc(p.Claim.Starts, func(s Start) bool { return s.Lane == 0 })
	require.Equal(t, Place{Due: d.now, ID: tenant}, p.Claim.Starts[i].After)
	d.claimed(p)
	none[Sweep](d)
	p = the[*Pass](d)
	require.Len(t, p.Claim.Turns.Hops, 4, "events may have turns from before")
	d.claimed(p)
	require.Len(t, all[Sweep](d), 1)
}

// TestDrainTriesWhatRests: one event of each target that is to be tried, and what rests does not keep it from ending.
func TestDrainTriesWhatRests(t *testing.T) {
	t.Parallel()
	for _, any := range []bool{false, true} {
		d := drive(t, asDrain)
		d.rests(d.sent)
		d.now = d.now.Add(2 * time.Second)
		try := d.first()
		require.Equal(t, d.sent, try.try)
		require.Equal(t, []string{"sent", "sent2"}, try.Claim.Topics)
		require.Equal(t, 1, try.Claim.Size)
		if any {
			d.claimed(try, d.tasks("sent", 1)...)
			d.sentAll(the[*Send](d), errclass.ClassUnavailable)
			require.Len(t, the[*Pass](d).Settle, 1)
		} else {
			d.step(0, &PassDone{Pass: try, Found: Found{At: d.now, Ends: map[int32]Place{3: {Due: d.now, ID: tenant}}}})
			try = the[*Pass](d)
			require.Nil(t, try.try, "not before a pause")
			d.claimed(try)
			d.claimed(the[*Pass](d))
			d.step(0, Swept{})
			require.Equal(t, DrainDone, the[*End](d).Drained)
			continue
		}
		p := the[*Pass](d)
		require.Equal(t, []string{"handled", "routed"}, p.Claim.Topics)
		d.claimed(p)
		d.claimed(the[*Pass](d))
		require.Len(t, all[Sweep](d), 1)
	}
}

// rests makes a target rest.
func (d *driven) rests(to *Target) {
	task := d.tasks("", 1)[0]
	to.Rest.OnResults(d.now, d.now, ids(task), []errclass.Result{errclass.New(errclass.ClassUnavailable, "away")})
}

// TestDrainEndsAtAnError: of the database, unless something was claimed nevertheless, which is handled first.
func TestDrainEndsAtAnError(t *testing.T) {
	t.Parallel()
	d := drive(t, asDrain)
	tasks := d.tasks("handled", 1)
	d.step(0, Started{})
	d.step(0, &PassDone{Pass: the[*Pass](d), Claimed: tasks, Err: errDown})
	d.reported(errclass.ClassDone, tasks...)
	d.failed(the[*Pass](d))
	require.Equal(t, &End{Err: errDown}, the[*End](d))
}

// TestDrainReadsPauses: once per poll interval, between two batches.
func TestDrainReadsPauses(t *testing.T) {
	t.Parallel()
	d := drive(t, asDrain)
	p := d.first()
	tasks := d.tasks("handled", 1)
	d.claimed(p, tasks...)
	d.now = d.now.Add(11 * time.Second)
	d.reported(errclass.ClassDone, tasks...)
	require.Len(t, all[ReadPauses](d), 1)
	none[*Pass](d)
	d.step(0, &PausesRead{Pauses: PausesOf(true, nil)})
	p = the[*Pass](d)
	require.Nil(t, p.Claim)
	require.Equal(t, tasks, p.Settle)
	d.claimed(p)
	require.Len(t, all[Sweep](d), 1)
}

// TestDrainStops: it releases what was not started, waits for handlers, and settles both in one pass.
func TestDrainStops(t *testing.T) {
	t.Parallel()
	for _, givesUp := range []bool{false, true} {
		d := drive(t, asDrain)
		tasks := d.tasks("handled", 4)
		d.claimed(d.first(), tasks...)
		d.step(0, Stop{})
		none[*Pass](d)
		d.reported(errclass.ClassDone, tasks[0])
		none[*Pass](d)
		var running []*Task
		if givesUp {
			running = tasks[1:2]
			d.step(0, GiveUp{})
		} else {
			d.reported(errclass.ClassDone, tasks[1])
		}
		require.Len(t, the[*Pass](d).Settle, 4-len(running))
		d.claimed(the[*Pass](d))
		require.Equal(t, &End{Running: running}, the[*End](d))
	}
}
