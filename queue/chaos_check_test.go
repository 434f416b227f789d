package queue_test

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/turn"
	"github.com/outboxgen/outboxgen/outbox"
)

const (
	// declareGrace is how long after a change of limits claims may still have the values from before: that long a
	// transaction that changes them may take to commit.
	declareGrace = time.Second
	// lookEach is how far apart the checker looks at who waits.
	lookEach = 50 * time.Millisecond
	// awhile is how long a key may wait that is free to start an event.
	awhile = 10 * time.Second
	// remember is longer than the period of every rate here.
	remember = 30 * time.Second
)

// limitKey is a key of a limit.
type limitKey struct{ per, key string }

// referee checks a history, piece by piece.
type referee struct {
	topic    string
	shapes   map[string]turn.Shape // by tag
	pers     []string
	versions map[string][]declared // by per
	without  []span                // when nothing needs to start: pauses, and while the server is down
	looked   time.Time             // when it looked last who waits
	awhile   time.Duration

	live     map[limitKey]map[uuid.UUID]bool // leased
	starts   map[limitKey][]time.Time        // of leases that can have been started
	begins   map[limitKey][]time.Time        // of all leases
	lastTurn map[string]time.Time            // when a lease of it began
	rows     map[uuid.UUID]*change
	waits    map[string]time.Time // since when a turn waits
	result   findings
}

// span is an interval of time; a zero To has not ended.
type span struct{ From, To time.Time }

// findings are what a referee has found.
type findings struct {
	Leases, Reclaims, Calls int
	Most                    map[string]int // leases at once, by per
	MostStarts              map[string]int // in a period, by per
	Longest                 time.Duration  // that a key waited
	Beside                  int            // handlers that ran beside another one of their key, because the lease of that one had ended
	Wrong                   []string
}

// refereeOf returns a referee for a topic with these limits, some of them fair by tenant.
func refereeOf(topic string, limits []outbox.Limit) *referee {
	r := &referee{
		topic: topic, awhile: awhile, shapes: make(map[string]turn.Shape), live: make(map[limitKey]map[uuid.UUID]bool),
		starts: make(map[limitKey][]time.Time), begins: make(map[limitKey][]time.Time), lastTurn: make(map[string]time.Time),
		rows: make(map[uuid.UUID]*change), waits: make(map[string]time.Time), versions: make(map[string][]declared),
		result: findings{Most: make(map[string]int), MostStarts: make(map[string]int)},
	}
	for _, l := range limits {
		r.pers = append(r.pers, l.Per)
	}
	for _, fair := range []bool{false, true} {
		s := turn.ShapeOf(topic, fair, r.pers)
		r.shapes[s.Tag()] = s
	}
	return r
}

// keysOf returns the keys of a turn.
func (r *referee) keysOf(text string) (keys []limitKey) {
	parts := strings.Split(text, "/")
	shape, known := r.shapes[parts[0]]
	if !known {
		return nil
	}
	for _, per := range r.pers {
		k := limitKey{per: per}
		if n := shape.Part(per); n > 0 {
			k.key = parts[n]
		}
		keys = append(keys, k)
	}
	return keys
}

// values are those of a limit.
type values struct {
	concurrency, rate int
	period            time.Duration
}

// allowed returns the values of a limit from a time to another: the largest, or the smallest.
func (r *referee) allowed(per string, from, to time.Time, largest bool) (v values) {
	pick := func(was, is int) int {
		switch {
		case was == 0:
			return is
		case largest:
			return max(was, is)
		}
		return min(was, is)
	}
	all := r.versions[per]
	for i := sort.Search(len(all), func(i int) bool { return all[i].At.After(to) }) - 1; i >= 0; i-- {
		l := &all[i]
		if l.SetUntil.After(from) { // what is set holds at the beginning
			v.concurrency, v.rate = pick(v.concurrency, max(l.SetConcurrency, 0)), pick(v.rate, max(l.SetRate, 0))
			if l.SetConcurrency == 0 {
				v.concurrency = pick(v.concurrency, l.Concurrency)
			}
			if l.SetRate == 0 {
				v.rate = pick(v.rate, l.Rate)
			}
		}
		if !l.SetUntil.After(to) {
			v.concurrency, v.rate = pick(v.concurrency, l.Concurrency), pick(v.rate, l.Rate)
		}
		if v.period = max(v.period, l.Period); !l.At.After(from) {
			break
		}
	}
	return v
}

func (r *referee) wrong(format string, args ...any) {
	r.result.Wrong = append(r.result.Wrong, r.topic+": "+fmt.Sprintf(format, args...))
}

// check goes through the next piece of a history.
func (r *referee) check(h *history) {
	for _, l := range h.Limits {
		r.versions[l.Per] = append(r.versions[l.Per], l)
	}
	for _, c := range h.Changes {
		if r.looked.IsZero() {
			r.looked = c.At
		}
		for ; r.looked.Before(c.At); r.looked = r.looked.Add(lookEach) {
			r.look(r.looked)
		}
		r.apply(&c)
	}
	for _, times := range []map[limitKey][]time.Time{r.starts, r.begins} {
		for k, all := range times {
			if all = all[sort.Search(len(all), func(i int) bool { return r.looked.Sub(all[i]) <= remember }):]; len(all) <= cap(times[k])/2 {
				times[k] = slices.Clone(all) // of a long campaign
			}
		}
	}
}

// apply takes in one change.
func (r *referee) apply(c *change) {
	begins, ends := c.begins()
	if was := r.rows[c.ID]; ends && was != nil {
		for _, k := range r.keysOf(was.Turn) {
			delete(r.live[k], c.ID)
		}
	}
	if begins {
		r.result.Leases++
		if ends {
			r.result.Reclaims++
		}
		r.lastTurn[c.Turn] = c.At
		for _, k := range r.keysOf(c.Turn) {
			r.begin(c, k, ends)
		}
	}
	if c.Due.IsZero() {
		delete(r.rows, c.ID)
	} else {
		r.rows[c.ID] = c
	}
}

// begin takes in that a lease begins. again says that it follows another one, so that no more are live than before.
func (r *referee) begin(c *change, k limitKey, again bool) {
	v := r.allowed(k.per, c.Asked.Add(-declareGrace), c.At, true)
	if r.live[k] == nil {
		r.live[k] = make(map[uuid.UUID]bool)
	}
	r.live[k][c.ID] = true
	n := len(r.live[k])
	r.result.Most[k.per] = max(r.result.Most[k.per], n)
	if v.concurrency > 0 && n > v.concurrency && !again {
		r.wrong("%s: %d leases of %q per %q, and %d are allowed", c.At.Format(time.StampMicro), n, k.key, k.per, v.concurrency)
	}
	r.begins[k] = append(r.begins[k], c.At)
	if v.rate == 0 || c.At.Sub(c.Asked) > v.period/32 { // its event may be handed back
		return
	}
	s := append(r.starts[k], c.At)
	r.starts[k] = s
	n = within(s, c.At, v.period)
	r.result.MostStarts[k.per] = max(r.result.MostStarts[k.per], n)
	if n > v.rate {
		r.wrong("%s: %d starts in %s of %q per %q, and %d are allowed", c.At.Format(time.StampMicro), n, v.period, k.key, k.per, v.rate)
	}
}

// within counts the last of times that are within a period before at.
func within(times []time.Time, at time.Time, period time.Duration) (n int) {
	for _, t := range slices.Backward(times) {
		if at.Sub(t) >= period {
			break
		}
		n++
	}
	return n
}

// look looks who waits at a time although nothing is in its way.
func (r *referee) look(at time.Time) {
	idle := slices.ContainsFunc(r.without, func(s span) bool {
		return !at.Before(s.From) && (s.To.IsZero() || !at.After(s.To))
	})
	waiting := make(map[string]bool)
	full := make(map[limitKey][2]bool)
	for _, c := range r.rows {
		late := !c.Until.IsZero()
		free, looked := waiting[c.Turn]
		if idle || free || looked && !late || c.Due.After(at) || late && c.Until.After(at) {
			continue
		}
		free = true
		for _, k := range r.keysOf(c.Turn) {
			is, known := full[k]
			if !known {
				v := r.allowed(k.per, at.Add(-declareGrace), at, false)
				is = [2]bool{
					v.concurrency > 0 && len(r.live[k]) >= v.concurrency,
					v.rate > 0 && within(r.begins[k], at, v.period+v.period/4+v.period/32) >= v.rate,
				}
				full[k] = is
			}
			free = free && !is[1] && (late || !is[0])
		}
		waiting[c.Turn] = free
	}
	for name := range r.waits {
		if !waiting[name] {
			delete(r.waits, name)
		}
	}
	for name, is := range waiting {
		if !is {
			continue
		}
		since, already := r.waits[name]
		switch began := r.lastTurn[name]; {
		case !already:
			r.waits[name] = at
		case began.After(since):
			r.waits[name] = began
		case at.Sub(since) > r.awhile && at.Sub(since) <= r.awhile+lookEach:
			r.wrong("%s: %q has waited for %s, and nothing was in its way", at.Format(time.StampMicro), name, r.awhile)
			fallthrough
		default:
			r.result.Longest = max(r.result.Longest, at.Sub(since))
		}
	}
}

// calling is how long after the check of its time a handler may begin on a busy machine.
func calling(period time.Duration) time.Duration { return period / 100 }

// checkCalls checks the rates of what handlers have recorded, per key of the field.
func (r *referee) checkCalls(calls []handled) {
	if r.result.Calls = len(calls); len(r.pers) == 0 {
		return
	}
	per := r.pers[len(r.pers)-1]
	begun, over := make(map[string][]time.Time), make(map[string]time.Time)
	for i := range calls {
		c := &calls[i]
		v := r.allowed(per, c.Began.Add(-2*declareGrace), c.Began, true)
		if v.concurrency == 1 && c.Began.Before(over[c.Key]) {
			r.result.Beside++
		}
		if c.Over.After(over[c.Key]) {
			over[c.Key] = c.Over
		}
		begun[c.Key] = append(begun[c.Key], c.Began)
		if n := within(begun[c.Key], c.Began, v.period-calling(v.period)); v.rate > 0 && n > v.rate {
			r.wrong("%s: %d handlers of %q have begun in %s, and %d are allowed", c.Began.Format(time.StampMicro), n, c.Key, v.period, v.rate)
		}
	}
	if i := slices.IndexFunc(calls, func(c handled) bool { return c.Recorded.Before(c.Began) }); i >= 0 {
		r.wrong("the clocks differ: %s is recorded at %s", calls[i].Began, calls[i].Recorded)
	}
}

// TestRefereeOfLimits: a referee finds each kind of fault in a history that is made up, and none in one without.
func TestRefereeOfLimits(t *testing.T) {
	t.Parallel()
	limits := []outbox.Limit{{Per: "{secret}"}}
	shape := turn.ShapeOf("limited", true, []string{"{secret}"})
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	of := shape.Of("t", []string{"a"})
	lease := func(from, to float64, ms ...change) []change {
		id := uuid.New()
		return append(ms,
			change{At: at(from), Asked: at(from), ID: id, Turn: of, Due: at(0), Claim: 1, Until: at(from + 5)},
			change{At: at(to), Asked: at(to), ID: id, Turn: of, WasClaim: 1, WasLeased: true, Claim: 1})
	}
	two := []declared{{At: at(-9), Per: "{secret}", Concurrency: 2, Rate: 3, Period: 10 * time.Second}}
	set := slices.Clone(two)
	set[0].SetConcurrency, set[0].SetUntil = 1, at(100)
	lowered := append(slices.Clone(two), declared{At: at(1), Per: "{secret}", Concurrency: 1, Rate: 3, Period: 10 * time.Second})
	waits := change{At: at(0), Asked: at(0), ID: uuid.New(), Turn: of, Due: at(0)}
	call := func(seconds float64) handled { return handled{Key: "a", Began: at(seconds), Recorded: at(seconds)} }
	for name, c := range map[string]struct {
		changes [][]change
		limits  []declared
		calls   []handled
		without []span
		want    []string
	}{
		"allowed":        {[][]change{lease(1, 3), lease(2, 4), lease(3, 5), lease(11.1, 12)}, two, nil, nil, nil},
		"three at once":  {[][]change{lease(1, 3), lease(2, 4), lease(2.5, 5)}, two, nil, nil, []string{"3 leases"}},
		"set":            {[][]change{lease(1, 3), lease(2, 4)}, set, nil, nil, []string{"2 leases"}},
		"lowered":        {[][]change{lease(1, 3), lease(3.5, 6), lease(4, 5)}, lowered, nil, nil, []string{"2 leases"}},
		"while lowering": {[][]change{lease(1, 3), lease(1.5, 2)}, lowered, nil, nil, nil},
		"four starts":    {[][]change{lease(1, 2), lease(3, 4), lease(5, 6), lease(10.9, 12)}, two, nil, nil, []string{"4 starts"}},
		"late claim": {[][]change{lease(1, 2), lease(3, 4), lease(5, 6), {
			{At: at(7), Asked: at(6), ID: uuid.New(), Turn: of, Due: at(0), Claim: 1, Until: at(20)},
		}}, two, nil, nil, nil},
		"handlers":        {[][]change{lease(1, 2)}, two, []handled{call(1), call(1), call(2), call(3)}, nil, []string{"4 handlers"}},
		"handlers apart":  {[][]change{lease(1, 2)}, two, []handled{call(1), call(1), call(2), call(11)}, nil, nil},
		"nobody takes it": {[][]change{{waits}, lease(1, 2), lease(14, 15)}, two, nil, nil, []string{"has waited"}},
		"while paused":    {[][]change{{waits}, lease(1, 2), lease(14, 15)}, two, nil, []span{{From: at(3), To: at(8)}}, nil},
		"nobody reclaims": {[][]change{lease(1, 17)}, two, nil, nil, []string{"has waited"}},
	} {
		changes := slices.SortedStableFunc(slices.Values(slices.Concat(c.changes...)), func(a, b change) int { return a.At.Compare(b.At) })
		r := refereeOf("limited", limits)
		r.without = c.without
		half := len(changes) / 2
		r.check(&history{Changes: changes[:half], Limits: c.limits})
		r.check(&history{Changes: changes[half:]})
		r.checkCalls(c.calls)
		got := r.result
		require.Len(t, got.Wrong, len(c.want), "%s: %v", name, got.Wrong)
		for i, want := range c.want {
			require.Contains(t, got.Wrong[i], want, name)
		}
	}
	require.Equal(t, []limitKey{{"{secret}", "a"}}, refereeOf("limited", limits).keysOf(of))
	require.Len(t, slices.Collect(maps.Keys(refereeOf("limited", limits).shapes)), 2)
}
