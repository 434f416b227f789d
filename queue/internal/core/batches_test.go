package core

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/rest"
	"github.com/outboxgen/outboxgen/outbox"
)

// asBatched gives the topic "handled" batches, and adds the topic "single" without.
func asBatched(size int, wait time.Duration) func(*Config) {
	return func(c *Config) {
		c.Targets[0].Batch = outbox.Batch{Size: size, Wait: wait}
		single := &Target{Rest: &rest.Target{Name: "single", Breaker: c.Targets[0].Rest.Breaker, Random: least}}
		c.Targets = append(c.Targets, single)
		c.Topics = append(c.Topics, Topic{Name: "single", Target: single})
	}
}

// again makes a task one whose lease had run out.
func again(attempt int) func(*Task) {
	return func(t *Task) { t.Reclaimed, t.Attempt, t.MaxAttempts = true, attempt, 10 }
}

// reportedBatch reports tasks of b with one result.
func (d *driven) reportedBatch(b *RunBatch, class errclass.Class, tasks ...*Task) []Command {
	for _, t := range tasks {
		t.Result, t.Tried, t.Began = errclass.New(class, "%d", class), true, d.now
	}
	return d.step(time.Millisecond, &BatchReported{Batch: b, Tasks: tasks})
}

// sizes returns the sizes of the batches that the latest step has given to workers.
func (d *driven) sizes() (sizes []int) {
	for _, b := range all[*RunBatch](d) {
		sizes = append(sizes, len(b.Tasks))
	}
	return sizes
}

// TestBatchFills: a batch goes when it is full, or when its first event was claimed so long ago.
func TestBatchFills(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(4, time.Second))
	tasks := d.tasks("handled", 6)
	d.claimed(d.first(), tasks[:3]...)
	none[*RunBatch](d)
	p := all[*Pass](d)
	require.Len(t, p, 1, "it claims on while a batch fills")
	d.claimed(p[0], tasks[3:]...)
	b := the[*RunBatch](d)
	require.Equal(t, tasks[:4], b.Tasks)
	d.step(time.Second, Tick{})
	require.Equal(t, tasks[4:], the[*RunBatch](d).Tasks)
	require.Equal(t, 2, d.running)
	d.reportedBatch(b, errclass.ClassDone, tasks[:3]...)
	require.Equal(t, 2, d.running, "its worker searches on")
	d.reportedBatch(b, errclass.ClassDone, tasks[3])
	require.Equal(t, 1, d.running)
}

// TestTimerOfABatch: the core wants to be called when the wait is over.
func TestTimerOfABatch(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(4, 100*time.Millisecond))
	tasks := d.tasks("handled", 1)
	d.claimed(d.first(), tasks...)
	require.Equal(t, tasks[0].ClaimDeadline.Add(-d.cfg.LeaseDuration+100*time.Millisecond), d.goesAt(d.handled))
	require.False(t, d.timerAt.After(d.goesAt(d.handled)))
	claimed := tasks[0].ClaimDeadline.Add(-d.cfg.LeaseDuration)
	tasks[0].StartWithin = claimed.Add(100 * time.Millisecond)
	require.Equal(t, claimed.Add(50*time.Millisecond), d.goesAt(d.handled), "a rate does not allow it to begin late")
	tasks[0].StartWithin = claimed.Add(time.Second)
	require.Equal(t, claimed.Add(100*time.Millisecond), d.goesAt(d.handled))
}

// TestSmallBatchWaitsForAFreeWorker: until then it may become larger. A full one is given ahead.
func TestSmallBatchWaitsForAFreeWorker(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(2, 0), func(c *Config) { c.Ahead = 2 })
	tasks := d.tasks("handled", 7)
	d.claimed(d.first(), tasks[:3]...)
	require.Equal(t, []int{2, 1}, d.sizes())
	first := all[*RunBatch](d)
	d.claimed(all[*Pass](d)[0], tasks[3])
	none[*RunBatch](d)
	d.claimed(all[*Pass](d)[0], tasks[4:]...)
	require.Equal(t, []int{2, 2}, d.sizes())
	require.Equal(t, 4, d.running)
	d.reportedBatch(first[0], errclass.ClassDone, first[0].Tasks...)
	none[*RunBatch](d)
}

// TestBatchesAndEventsTakeTurns: what waits longest for a worker is next.
func TestBatchesAndEventsTakeTurns(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(2, 0), func(c *Config) { c.Concurrency, c.Ahead = 1, 1 })
	one, batch, two := d.tasks("single", 2), d.tasks("handled", 1), d.tasks("single", 1)
	d.claimed(d.first(), append(append(one, batch...), two...)...)
	require.Equal(t, []Run{{one[0]}, {one[1]}}, all[Run](d))
	d.reported(errclass.ClassDone, one[0])
	none[Run](d) // the batch is next, and waits for a free worker
	none[*RunBatch](d)
	d.reported(errclass.ClassDone, one[1])
	b := the[*RunBatch](d)
	require.Equal(t, batch, b.Tasks)
	require.Equal(t, []Run{{two[0]}}, all[Run](d))
	d.reportedBatch(b, errclass.ClassDone, batch...)
}

// TestReclaimedBatches: events whose lease had run out are in batches without others, of half the size with each
// attempt. On its last attempt an event is alone.
func TestReclaimedBatches(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(16, time.Hour), func(c *Config) { c.Concurrency = 20 })
	tasks := append(append(d.tasks("handled", 3), d.tasks("handled", 9, again(2))...), d.tasks("handled", 5, again(3))...)
	tasks = append(tasks, d.tasks("handled", 2, again(9))...)
	d.claimed(d.first(), tasks...)
	// the ninth of the second attempt is with some of the third, and those of the ninth are each alone
	require.Equal(t, []int{8, 4, 2, 1, 1}, d.sizes())
	require.Len(t, d.handled.ready, 3)
	require.Equal(t, 16, d.handled.limit(&Task{Attempt: 5, MaxAttempts: 5}))
	require.Equal(t, 1, d.handled.limit(&Task{Attempt: 2, MaxAttempts: 2, Reclaimed: true}))
	require.Equal(t, 1, d.handled.limit(&Task{Attempt: 40, MaxAttempts: 50, Reclaimed: true}))
}

// TestLastAttemptIsAloneNextToBatches: what fills goes at once, so that the event can be alone soon.
func TestLastAttemptIsAloneNextToBatches(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(16, time.Hour))
	tasks := append(d.tasks("handled", 3), d.tasks("handled", 1, again(10))...)
	d.claimed(d.first(), tasks...)
	b := the[*RunBatch](d)
	require.Equal(t, tasks[:3], b.Tasks)
	d.reportedBatch(b, errclass.ClassDone, b.Tasks...)
	for _, p := range all[*Pass](d) {
		d.claimed(p)
	}
	require.Equal(t, tasks[3:], the[*RunBatch](d).Tasks)
}

// TestBatchesInADrain: a drain claims a batch for each worker, and gives them at once.
func TestBatchesInADrain(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(50, time.Hour), asDrain)
	p := d.first()
	require.Equal(t, 100, p.Claim.Size)
	d.claimed(p, d.tasks("handled", 60)...)
	require.Equal(t, []int{50, 10}, d.sizes())
}

// TestRoomForBatches: one claim takes a full batch, and batches in flight take no room from other events.
func TestRoomForBatches(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(50, time.Hour))
	p := d.first()
	require.Equal(t, 50, p.Claim.Size, "more than the BatchSize of 10")
	d.claimed(p, d.tasks("handled", 49)...)
	p = the[*Pass](d)
	require.Equal(t, 50, p.Claim.Size, "the batch that fills takes no room")
	d.claimed(p, d.tasks("single", 40)...)
	require.Zero(t, d.room(d.now), "too little")
	require.Equal(t, []int{49}, d.sizes()[:1], "nothing is claimed any more that could fill it")
}

// TestBatchOfARestingTarget: one event finds out whether it is available again, and the others are handed back.
func TestBatchOfARestingTarget(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(4, 0))
	tasks := d.tasks("handled", 8)
	d.claimed(d.first(), tasks[:4]...)
	b, p := the[*RunBatch](d), the[*Pass](d)
	d.reportedBatch(b, errclass.ClassUnavailable, b.Tasks...)
	require.True(t, d.handled.Rest.Resting())
	d.claimed(p, tasks[4:]...)
	none[*RunBatch](d)
	require.Equal(t, errclass.ClassUnavailable, tasks[7].Result.Class)
	for d.step(time.Second, Tick{}); len(all[*Pass](d)) > 0; {
		p := all[*Pass](d)[0]
		if p.try == nil {
			d.claimed(p)
			continue
		}
		d.claimed(p, d.tasks("handled", 1)...)
		break
	}
	b = the[*RunBatch](d)
	require.Len(t, b.Tasks, 1)
	d.reportedBatch(b, errclass.ClassDone, b.Tasks...)
	require.False(t, d.handled.Rest.Resting())
}

// TestTryThatNoWorkerBegins: when the event that is to find out whether a target is available again is taken back, or
// comes too late, the target is tried again.
func TestTryThatNoWorkerBegins(t *testing.T) {
	t.Parallel()
	for name, topic := range map[string]string{"an event": "single", "a batch": "handled"} {
		for _, late := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				d := drive(t, asBatched(4, 0), func(c *Config) { c.Ahead = 2 })
				of := d.targetOf[topic]
				of.Rest.OnResults(d.now, d.now, newIDs(1), []errclass.Result{errclass.New(errclass.ClassUnavailable, "away")})
				d.now = d.now.Add(of.Rest.Left(d.now))
				tasks := d.tasks(topic, 1)
				d.claimed(d.first(), tasks...)
				require.False(t, of.Rest.Tryable(d.now), "one is under way")
				batches := all[*RunBatch](d)
				switch {
				case late && topic == "single":
					tasks[0].Late = true
					d.step(0, &Reported{Tasks: tasks})
				case late:
					tasks[0].Late = true
					d.step(0, &BatchReported{Batch: batches[0], Tasks: tasks})
				case topic == "single":
					d.step(0, &Recalled{Tasks: tasks})
					require.Equal(t, []Run{{tasks[0]}}, all[Run](d), "it is given again")
					return
				default:
					d.step(0, &Recalled{Batches: batches})
					require.Equal(t, []int{1}, d.sizes(), "it is given again")
					return
				}
				require.True(t, tasks[0].unstarted)
				n, _ := of.Rest.Admit(d.now, 5)
				require.Equal(t, 1, n)
			})
		}
	}
}

// TestBatchesTakenBack: what waits for a worker goes back to where it was, in its order, without what is gone.
func TestBatchesTakenBack(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(2, 0), func(c *Config) { c.Concurrency = 6 })
	tasks := append(d.tasks("handled", 6), d.tasks("handled", 2, again(2))...)
	d.claimed(d.first(), tasks...)
	require.Equal(t, []int{2, 2, 2, 1, 1}, d.sizes())
	batches := all[*RunBatch](d)
	tasks[4].lost = true
	d.step(0, &Recalled{Batches: batches[2:]})
	require.True(t, tasks[4].unstarted)
	require.Equal(t, tasks[5:6], all[*RunBatch](d)[0].Tasks)
	require.Equal(t, tasks[6:7], all[*RunBatch](d)[1].Tasks)
	require.Equal(t, []int{1, 1, 1}, d.sizes())
	require.Equal(t, 5, d.running)
}

// TestStopReleasesWhatFills: also what waits apart.
func TestStopReleasesWhatFills(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(10, time.Hour))
	tasks := append(d.tasks("handled", 2), d.tasks("single", 2)...)
	d.claimed(d.first(), append(tasks, d.tasks("handled", 1, again(2))...)...)
	d.step(0, Stop{})
	require.True(t, tasks[0].unstarted)
	require.Empty(t, d.handled.ready)
	require.Empty(t, d.handled.again)
	require.Zero(t, d.batched)
}

// TestBatchReported: what was not begun, and what shares its failure on its last attempt, is released uncounted.
func TestBatchReported(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(6, 0))
	tasks := d.tasks("handled", 6)
	d.claimed(d.first(), tasks...)
	b := the[*RunBatch](d)
	for _, p := range all[*Pass](d) {
		d.claimed(p)
	}
	tasks[0].Ended, tasks[1].Late = true, true
	for _, s := range tasks[2:5] {
		s.Shared, s.Tried, s.Began, s.Result = true, true, d.now, errclass.New(errclass.ClassFailed, "no")
	}
	tasks[3].Attempt = tasks[3].MaxAttempts
	tasks[4].lost = true
	tasks[5].Tried, tasks[5].Began = true, d.now
	d.step(0, &BatchReported{Batch: b, Tasks: tasks})
	require.Equal(t, tasks[4], the[Drop](d).Task)
	require.Zero(t, d.running)
	require.Zero(t, d.batched)
	p := all[*Pass](d)[0]
	require.Len(t, p.Settle, 5)
	require.Equal(t, Release, tasks[0].As)
	require.Zero(t, tasks[0].After)
	require.Equal(t, Release, tasks[1].As)
	require.Equal(t, Nack, tasks[2].As)
	require.Equal(t, Release, tasks[3].As)
	require.Equal(t, time.Second, tasks[3].After, "not at once")
	require.Equal(t, Ack, tasks[5].As)
}

// TestReclaimsGrow: a process takes few events whose lease has run out at first, no more before those are done, and then
// twice as many, unless a handler was not called.
func TestReclaimsGrow(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(40, 0))
	p := d.first()
	for i, want := range []int{5, 5, 10, 20, 20} {
		require.Equal(t, want, p.Claim.Reclaims)
		tasks := d.tasks("handled", want, again(2))
		d.claimed(p, tasks...)
		require.False(t, d.mayReclaim(d.now))
		batches := all[*RunBatch](d)
		for len(all[*Pass](d)) > 0 {
			p = all[*Pass](d)[0]
			require.False(t, p.reclaims())
			d.claimed(p)
		}
		for _, b := range batches {
			if i == 0 { // given back: nothing is known of whether they kill
				for _, t := range b.Tasks {
					t.Result = errclass.New(errclass.ClassNotSent, "test")
				}
				d.step(time.Millisecond, &BatchReported{Batch: b, Tasks: b.Tasks})
				continue
			}
			d.reportedBatch(b, errclass.ClassDone, b.Tasks...)
		}
		for p = all[*Pass](d)[0]; !p.reclaims(); p = all[*Pass](d)[0] {
			if d.claimed(p); len(all[*Pass](d)) == 0 {
				d.step(time.Second, Tick{})
			}
		}
	}
	d.claimed(p, d.tasks("handled", 1, again(2))...)
	require.False(t, d.mayReclaim(d.now))
	require.True(t, d.mayReclaim(d.now.Add(d.cfg.LastAttemptLimit)), "a long call does not keep others from being reclaimed")
}

// TestHolds: a lease that is lost or over is not held.
func TestHolds(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(2, 0))
	tasks := d.tasks("handled", 2)
	d.claimed(d.first(), tasks...)
	require.True(t, d.Holds(d.now, tasks))
	require.False(t, d.Holds(d.now.Add(d.cfg.LeaseDuration), tasks))
	tasks[1].lost = true
	require.False(t, d.Holds(d.now, tasks))
	require.True(t, d.Holds(d.now, tasks[:1]))
}

// TestBatchTooLate: of a batch whose leases are over nothing begins.
func TestBatchTooLate(t *testing.T) {
	t.Parallel()
	d := drive(t, asBatched(10, time.Minute))
	tasks := d.tasks("handled", 2)
	d.claimed(d.first(), tasks...)
	d.step(time.Hour, Tick{})
	none[*RunBatch](d)
	require.Equal(t, tasks[0], all[Lost](d)[0].Task)
	d.handled.ready = tasks // as if it had not been taken back
	tasks[0].lost, tasks[1].lost = true, true
	d.runBatch(d.now, d.handled, nil)
	none[*RunBatch](d)
}

func newIDs(n int) []uuid.UUID {
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = uuid.New()
	}
	return ids
}

// TestReclaimsWaitForWorkers: a process holds about as many events whose lease had run out as it handles at once, so that one
// that kills it costs few others an attempt. It does not wait for handlers that take long.
func TestReclaimsWaitForWorkers(t *testing.T) {
	t.Parallel()
	d := drive(t, func(c *Config) { c.Concurrency, c.BatchSize = 6, 100 })
	tasks := d.tasks("handled", 6, again(2))
	looks := func() (n int) {
		for passes := all[*Pass](d); len(passes) > 0; passes = all[*Pass](d) {
			if passes[0].reclaims() {
				n++
			}
			if d.claimed(passes[0]); len(all[*Pass](d)) == 0 {
				d.step(lookEvery, Tick{})
			}
		}
		return n
	}
	d.claimed(d.first(), tasks[:5]...)
	looks()
	require.False(t, d.suspecting(d.now))
	tasks[5].to = tasks[0].to
	d.added(d.now, tasks[5])
	require.False(t, d.mayReclaim(d.now))
	require.True(t, d.mayReclaim(d.now.Add(d.cfg.LastAttemptLimit)))
	d.reported(errclass.ClassDone, tasks[0])
	require.Positive(t, looks(), "it looks for others")
}
