package driver

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/outboxgen/outboxgen/internal/testing/faults/check"
)

// Faults of different lanes are caused concurrently, those of one lane one after the other.
const (
	laneKill = iota
	laneStop
	laneServer
	laneNetwork
	laneOutside
	lanes
)

var laneNames = [lanes]string{"kill", "stop", "server", "network", "outside"}

// What not every machine can.
const (
	needsDisk  = "a disk of its own for the server, which only root can mount"
	needsClock = "the overlay of tools/stepclock"
)

// fault is a kind of fault.
type fault struct {
	kind string
	lane int
	// share is how many of a thousand faults are of this kind; 0 means what the others leave.
	share int
	needs string // "" if every machine can
	cause func(ctx context.Context, d *driver, r *rand.Rand) error
}

// deck returns faults in the order in which a seed draws them: all that are possible, and as many as their shares of n say.
// A campaign of a thousand or more has all of these, and each other kind a few times, even if that is more than n. In a
// shorter one the shares get what the kinds leave.
func deck(all []fault, n int, r *rand.Rand) []fault {
	var drawn, rest []fault
	wanted := 0
	for _, f := range all {
		times := 1
		if f.share == 0 {
			rest = append(rest, f)
			times = max(n/500, 1)
		}
		for range times {
			drawn = append(drawn, f)
		}
		wanted += max(f.share*n/1000-1, 0)
	}
	shuffle(drawn, r)
	if len(drawn) >= n {
		return drawn[:n]
	}
	more := wanted
	if n < 1000 {
		more = min(n-len(drawn), wanted)
	}
	for _, f := range all {
		for range max(f.share*n/1000-1, 0) * more / max(wanted, 1) {
			drawn = append(drawn, f)
		}
	}
	for len(drawn) < n {
		drawn = append(drawn, rest[r.IntN(len(rest))])
	}
	shuffle(drawn, r)
	return drawn
}

func shuffle(fs []fault, r *rand.Rand) {
	r.Shuffle(len(fs), func(i, k int) { fs[i], fs[k] = fs[k], fs[i] })
}

// possible returns the kinds that this machine can, and notes those that it cannot.
func (d *driver) possible() []fault {
	var can []fault
	for _, f := range kinds() {
		if f.needs == "" || d.can[f.needs] {
			can = append(can, f)
		} else {
			d.cannot = append(d.cannot, fmt.Sprintf("%s (needs %s)", f.kind, f.needs))
		}
	}
	return can
}

const (
	// perFault is how much time there is for a fault, on average over all lanes.
	perFault = 500 * time.Millisecond
	// stuck is how long a fault may take.
	stuck = 5 * time.Minute
)

// expected is about how long the faults take.
func (d *driver) expected() time.Duration {
	if d.calm {
		return time.Duration(float64(d.Events)/400) * time.Second
	}
	if d.Time > 0 {
		return d.Time
	}
	return time.Duration(d.Faults) * perFault
}

// cause causes the faults, while the writers write.
func (d *driver) cause(ctx context.Context) error {
	n := d.Faults
	if n == 0 {
		n = int(d.Time / perFault)
	}
	var by [lanes][]fault
	for _, f := range deck(d.possible(), n, d.rng(1)) {
		by[f.lane] = append(by[f.lane], f)
	}
	d.say("%d faults with seed %d", n, d.Seed)
	causing, cancel := context.WithCancel(ctx)
	defer cancel()
	if d.Time > 0 {
		causing, cancel = context.WithTimeout(ctx, d.Time)
		defer cancel()
	}
	var busy sync.WaitGroup
	for lane, faults := range by {
		busy.Go(func() {
			r := d.rng(uint64(2 + lane))
			each, began := d.expected()/time.Duration(max(len(faults), 1)), time.Now()
			for i, f := range faults {
				// A lane spreads its faults over the time, and does not wait if it is late.
				at := began.Add(time.Duration(i)*each + time.Duration(r.Int64N(int64(each))))
				d.one(causing, f, r, time.Until(at))
				if i%50 == 49 {
					d.say("%d of %d faults of the lane %s", i+1, len(faults), laneNames[lane])
				}
			}
		})
	}
	busy.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.say("the faults are over")
	return d.write(ctx)
}

// one causes a fault after a while.
func (d *driver) one(ctx context.Context, f fault, r *rand.Rand, after time.Duration) {
	if pause(ctx, after) != nil {
		return
	}
	_ = d.journal.Add(check.Line{Kind: check.Fault, Say: f.kind})
	// A fault is not left half done when the time is over.
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), stuck)
	defer cancel()
	began := time.Now()
	err := f.cause(whole, d, r)
	if took := time.Since(began); took > 30*time.Second {
		d.say("%s took %s", f.kind, took.Round(time.Second))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.errs[f.kind] = err
		return
	}
	d.done[f.kind]++
}

// write waits until the writers have written what they must.
func (d *driver) write(ctx context.Context) error {
	for {
		// To count is expensive, so the numbers are looked at first, some of which were rolled back.
		var enough bool
		if err := d.root.QueryRow(ctx, `SELECT CASE WHEN (SELECT sum(n) FROM items) < $1 THEN false ELSE
			(SELECT count(*) FROM placed) >= $1 END`, d.Events).Scan(&enough); err == nil && enough {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// byCount returns the kinds, the most frequent first.
func byCount(counts map[string]int) []string {
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(counts[b]-counts[a], cmp.Compare(a, b))
	})
}
