package core

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// TestPauses: what is paused by a topic, a tenant, a tenant of a topic, or as a whole.
func TestPauses(t *testing.T) {
	t.Parallel()
	mine, nobody := uuid.NullUUID{UUID: tenant, Valid: true}, uuid.NullUUID{}
	everything, nothing := PausesOf(true, []string{"a"}), PausesOf(false, nil)
	some := PausesOf(false, []string{"b", "a", "b", tenant.String(), "c/" + tenant.String()})
	require.Equal(t, []string{tenant.String(), "a", "b", "c/" + tenant.String()}, some.Keys)
	require.Empty(t, everything.Keys)
	require.Empty(t, (*Pauses)(nil).Texts())
	require.Equal(t, some.Keys, some.Texts())
	require.False(t, (*Pauses)(nil).Any())
	for _, c := range []struct {
		p     *Pauses
		topic string
		of    uuid.NullUUID
		want  bool
	}{
		{everything, "x", nobody, true}, {nothing, "a", mine, false},
		{some, "a", nobody, true}, {some, "x", mine, true}, {some, "x", nobody, false},
		{some, "c", uuid.NullUUID{UUID: uuid.UUID{1}, Valid: true}, false},
		{PausesOf(false, []string{"c/" + tenant.String()}), "c", mine, true},
	} {
		require.Equal(t, c.want, c.p.Event(c.topic, c.of), "%v %s", c.p, c.topic)
	}
	require.True(t, everything.Topic("x"))
	require.True(t, some.Topic("a"))
	require.True(t, some.Every([]string{"a", "b"}))
	require.False(t, some.Every([]string{"a", "c"}))
	require.False(t, some.Every(nil))
	require.True(t, everything.Every(nil))
	require.True(t, nothing.Ended(some))
	require.False(t, some.Ended(nothing))
	require.False(t, everything.Ended(some))
	require.True(t, some.Ended(everything))
	require.True(t, some.Equal(PausesOf(false, []string{"a", "b", tenant.String(), "c/" + tenant.String()})))
	require.False(t, some.Equal(nothing))
}

// TestPausedDispatcherIsIdle: a dispatcher whose topics are all paused does not run in a loop.
func TestPausedDispatcherIsIdle(t *testing.T) {
	t.Parallel()
	d := drive(t, func(c *Config) { c.Pauses = PausesOf(true, nil) })
	d.step(0, Started{})
	none[*Pass](d)
	steps := 0
	for end := d.now.Add(time.Minute); d.now.Before(end); steps++ {
		at := d.timerAt
		require.True(t, at.After(d.now), "%v", d.out)
		d.step(at.Sub(d.now), Tick{})
		none[*Pass](d)
		for range all[ReadPauses](d) {
			d.step(0, &PausesRead{Pauses: PausesOf(true, nil)})
		}
	}
	require.Less(t, steps, 700)
	d.step(0, &PausesRead{Pauses: NoPauses})
	require.Len(t, all[*Pass](d), 1)
}

// TestPauseWithdraws: what is paused and has not begun is released, wherever it waits: for a worker, for a publisher,
// for its destination to be known, for a call to it, or to be alone.
func TestPauseWithdraws(t *testing.T) {
	t.Parallel()
	d := drive(t, func(c *Config) { c.Concurrency = 1 })
	handled, sent, routed := d.tasks("handled", 3), d.tasks("sent", 2), d.tasks("routed", 3)
	last := d.tasks("handled", 1, func(t *Task) { t.Reclaimed, t.Attempt = true, 3 })[0]
	d.claimed(d.first(), append(append(append(handled, sent[0]), routed[:2]...), last)...)
	call, route := the[*Send](d), the[*Route](d)
	require.Equal(t, []*Task{sent[0]}, call.Tasks)
	d.step(0, &Routed{Route: route, Destinations: []Destined{{"a", routed[:1]}, {"b", routed[1:2]}}})
	calls := all[*Send](d)
	require.Len(t, calls, 2)
	d.adopt(sent[1], d.sent)
	d.start(sent[1])
	d.adopt(routed[2], d.routed)
	d.start(routed[2])
	d.step(0, Tick{})
	route = the[*Route](d)
	waiting := d.tasks("routed", 1)[0]
	d.adopt(waiting, d.routed)
	d.addToLine(d.routed, d.routed.known["a"], waiting)

	d.step(0, &PausesRead{Pauses: PausesOf(true, nil)})
	d.step(0, &Routed{Route: route, Destinations: []Destined{{"c", route.Tasks}}})
	require.ElementsMatch(t, []*Task{handled[1], handled[2], sent[1], routed[2], waiting, last},
		append(d.finished, settledBy(d)...))
	for _, task := range append(d.finished, settledBy(d)...) {
		require.True(t, task.unstarted)
	}
	require.Nil(t, d.lastAttempt)
	require.NotContains(t, d.routed.known, "c")
}

// TestClaimOfWhatIsPausedMeanwhile: a claim that was sent before the pause is released.
func TestClaimOfWhatIsPausedMeanwhile(t *testing.T) {
	t.Parallel()
	d := drive(t)
	p := d.first()
	d.step(0, &PausesRead{Pauses: PausesOf(false, []string{"handled/" + tenant.String()})})
	tasks := append(d.tasks("handled", 1), d.tasks("sent", 1)...)
	d.claimed(p, tasks...)
	none[Run](d)
	require.Equal(t, tasks[1:], the[*Send](d).Tasks)
	require.Equal(t, tasks[:1], the[*Pass](d).Settle)
	require.Equal(t, Release, tasks[0].As)
}

// TestReadingOfPauses: it is repeated once per poll; after a ring while something is paused, and after the process is
// listed, immediately, and soon again until it succeeds.
func TestReadingOfPauses(t *testing.T) {
	t.Parallel()
	something := PausesOf(false, []string{"sent"})
	for name, e := range map[string]Event{"ring": Woken{}, "listed": Listed{}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := drive(t, func(c *Config) { c.Pauses = something })
			d.asleep()
			d.step(d.pausesAt.Sub(d.now), Tick{})
			require.Len(t, all[ReadPauses](d), 1, "once per poll")
			d.step(0, e)
			none[ReadPauses](d) // one is under way
			d.step(0, &PausesRead{Pauses: something})
			require.Len(t, all[ReadPauses](d), 1, "it may have come too early")
			for range 3 {
				d.step(0, &PausesRead{Err: errDown})
				none[ReadPauses](d)
				require.LessOrEqual(t, d.pausesAt.Sub(d.now), time.Second, "soon")
				d.step(d.pausesAt.Sub(d.now), Tick{})
				require.Len(t, all[ReadPauses](d), 1)
			}
			d.step(0, &PausesRead{Pauses: NoPauses})
			require.Equal(t, 10*time.Second, d.pausesAt.Sub(d.now))
			d.step(d.pausesAt.Sub(d.now), Tick{})
			d.step(0, &PausesRead{Err: errDown})
			require.Equal(t, 10*time.Second, d.pausesAt.Sub(d.now), "nobody has asked")
		})
	}
	d := drive(t)
	d.asleep()
	d.step(0, Woken{})
	none[ReadPauses](d) // nothing is paused, so no pause can have ended
}
