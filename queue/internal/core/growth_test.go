package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/growth"
)

// TestRoomForTurns: while handlers return soon, there is room for more events that have turns; not after a claim has met a
// limit that is reached.
func TestRoomForTurns(t *testing.T) {
	t.Parallel()
	a := turnAt(7, "a")
	for _, state := range []TurnState{TurnFull, TurnIdle} {
		d := drive(t, takesTurns(true), func(c *Config) { c.Grows = true })
		claim := func(ends ...TurnEnd) int {
			d.growOfTurns(d.now, &PassDone{Found: Found{Rows: make([]Seen, 40), TurnsFound: TurnsFound{Turns: ends}}})
			return d.growth.Size(10)
		}
		require.Equal(t, 10, claim(), "nobody knows how fast handlers are")
		require.Equal(t, 20, claim(ended(a, TurnMore), ended(a, TurnBusy)))
		require.Equal(t, 40, claim())
		require.Equal(t, 40, claim(), "no more than that")
		require.Equal(t, 10, claim(ended(a, state)))
		require.Equal(t, 10, claim())
		d.now = d.now.Add(growth.Pause)
		claim()
		require.Equal(t, 20, claim(), "the limit was reached a while ago")
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

// relayed is how a dispatcher that publishes is driven: all that it claims is published at once, and settled.
type relayed struct {
	*driven
	bytes  int           // of each payload
	took   time.Duration // each call
	fails  bool          // the first event of each
	passes []*Pass
	sends  []*Send
	most   int // in flight
	size   int // of the largest call
}

// deliver publishes the events of so many claims. There is always a backlog.
func (r *relayed) deliver(claims int) {
	r.most, r.size = 0, 0
	for claims > 0 {
		switch {
		case len(r.passes) > 0:
			p := r.passes[0]
			r.passes = r.passes[1:]
			if p.want > 0 {
				claims--
			}
			r.take(r.claimed(p, r.tasks("sent", p.want, func(t *Task) { t.Bytes = r.bytes })...))
		case len(r.sends) > 0:
			s := r.sends[0]
			r.sends = r.sends[1:]
			r.now = r.now.Add(r.took)
			r.size = max(r.size, len(s.Tasks))
			for i, t := range s.Tasks {
				t.Result, t.Tried = errclass.Result{}, true
				if r.fails && i == 0 {
					t.Result = errclass.New(errclass.ClassFailed, "test")
				}
			}
			r.take(r.step(0, &Sent{Send: s, Tasks: s.Tasks}))
		default:
			r.take(r.step(time.Second, Tick{}))
		}
		r.most = max(r.most, r.inFlight)
	}
}

func (r *relayed) take([]Command) {
	r.passes, r.sends = append(r.passes, all[*Pass](r.driven)...), append(r.sends, all[*Send](r.driven)...)
}

// TestClaimsOfRelaysGrow: while a broker is fast, more events are in flight, in larger claims and calls, as long as their payload
// is small; not with a BatchSize that is set, nor after a failure.
func TestClaimsOfRelaysGrow(t *testing.T) {
	t.Parallel()
	relay := func(change ...func(*Config)) *relayed {
		r := &relayed{driven: drive(t, append(change, func(c *Config) {
			c.Topics, c.Targets, c.Grows = c.Topics[1:2], c.Targets[1:2], !c.Grows
		})...)}
		r.take(r.step(0, Started{}))
		return r
	}
	r := relay()
	r.deliver(40)
	require.Equal(t, 80, r.most)
	require.GreaterOrEqual(t, r.size, 40)

	r.took = time.Second
	r.deliver(40)
	r.deliver(10)
	require.Equal(t, 10, r.most, "calls have become slow")

	r.took = 0
	r.deliver(40)
	require.Equal(t, 80, r.most)
	r.fails = true
	r.deliver(1)
	r.fails = false
	r.deliver(10)
	r.deliver(10)
	require.Equal(t, 10, r.most, "calls have failed a moment ago")
	r.now = r.now.Add(growth.Pause)
	r.deliver(40)
	require.Equal(t, 80, r.most)

	r.bytes = 200 << 10
	r.deliver(10)
	r.deliver(10)
	require.Equal(t, 40, r.growth.Size(10), "8 MiB")
	require.LessOrEqual(t, r.most, 40)
	r.bytes = 2 << 20
	r.deliver(10)
	r.deliver(10)
	require.Equal(t, 10, r.most)

	r = relay(func(c *Config) { c.Grows = true })
	r.deliver(40)
	require.Equal(t, 10, r.most, "a size that is set is the limit")
}

// TestFailuresOfDestinationsLeaveGrowth: a destination that events say concerns no others.
func TestFailuresOfDestinationsLeaveGrowth(t *testing.T) {
	t.Parallel()
	for _, class := range []errclass.Class{errclass.ClassFailed, errclass.ClassUnavailable} {
		d := drive(t, func(c *Config) { c.Grows = true })
		for range 3 {
			d.growOfRelays(d.now, &PassDone{Claimed: d.tasks("sent", 40)})
		}
		grown := d.growth.Size(10)
		require.Greater(t, grown, 10)
		_, tasks := d.on("one", 1)
		tasks[0].Result = errclass.New(class, "test")
		d.shrink(d.now, tasks)
		require.Equal(t, grown, d.growth.Size(10))
		tasks = d.tasks("sent", 1)
		tasks[0].Result = errclass.New(class, "test")
		d.shrink(d.now, tasks)
		require.Equal(t, 10, d.growth.Size(10))
	}
}

// TestRelaysBesideHandlers: a dispatcher with handlers has less additional room, and none because of events that wait for a
// worker.
func TestRelaysBesideHandlers(t *testing.T) {
	t.Parallel()
	d := drive(t, func(c *Config) { c.Grows = true })
	claim := func(topic string) int {
		d.growOfRelays(d.now, &PassDone{Claimed: d.tasks(topic, 40)})
		return d.growth.Size(10)
	}
	claim("sent")
	require.Equal(t, 20, claim("sent"))
	require.Equal(t, 40, claim("routed"))
	require.Equal(t, 40, claim("sent"))
	d.now = d.now.Add(40 * time.Millisecond)
	require.Equal(t, 20, claim("sent"))
	require.Equal(t, 20, claim("handled"))
	require.Equal(t, 20, claim("handled"))
	d.ready = d.tasks("handled", 1)
	require.Equal(t, 20, claim("sent"))
	require.Equal(t, 20, claim("sent"))
	d.ready = nil
	require.Equal(t, 40, claim("sent"))
	d = drive(t, takesTurns(true), func(c *Config) { c.Grows, c.Topics = true, c.Topics[:1] })
	for range 4 {
		require.Equal(t, 10, claim("handled"), "nothing is published")
	}
}
