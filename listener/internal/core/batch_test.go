package core

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

func (s Status) String() string {
	return [...]string{"waiting", "done", "retried", "dead", "parked"}[s]
}

// result makes a result of a class, with its name as the text.
func result(c errclass.Class) errclass.Result { return errclass.Result{Class: c, Text: fmt.Sprint(c)} }

// outcomes lists what has become of entries.
func outcomes(entries []*Entry) string {
	var all []string
	for _, e := range entries {
		all = append(all, fmt.Sprintf("%s %s", e.Key, e.Status))
	}
	return strings.Join(all, ", ")
}

// batchCase is a batch of events, one per word of keys. A word is a key, and what its handler returns: "a" is done,
// "a!" fails, "a/" fails and says when it is tried again, "a#" is refused, "a%" is so too and says when, "a?" finds its target unavailable, "a-" was
// not sent, "a+" was not sent because of an earlier one. A "p" in front of the word makes it a parked event, "n" one of
// an unknown version, "w" one that waits for a retry, "d" one that is done, and "u" one of a topic that is not read any
// more.
type batchCase struct {
	keys    string
	set     func(*play, *Batch)
	started string // the keys in the order in which their handlers were started
	want    string
}

// entriesOf makes the entries of a case, and what the handler of each returns.
func (p *play) entriesOf(keys string) (entries []*Entry, results map[*Entry]errclass.Result) {
	results = make(map[*Entry]errclass.Result)
	for i, word := range strings.Fields(keys) {
		e := p.event(int64(i + 1))
		for ; len(word) > 1 && word[1] >= 'a'; word = word[1:] {
			switch word[0] {
			case 'p':
				e.ParkedNo = int64(i + 1)
			case 'n':
				e.Newer = true
			case 'w':
				e.retry = &Retry{until: p.now.Add(time.Minute), text: "it failed"}
			case 'd':
				e.Status = Done
			case 'u':
				e.Of = nil
			}
		}
		e.Key = word[:1]
		e.number(3)
		r := errclass.Result{}
		switch word[1:] {
		case "!":
			r = result(errclass.ClassFailed)
		case "#":
			r = result(errclass.ClassRefused)
		case "%":
			r = result(errclass.ClassRefused)
			r.After = new(time.Duration)
		case "?":
			r = result(errclass.ClassUnavailable)
		case "/":
			r = result(errclass.ClassFailed)
			r.After = new(time.Duration)
		case "-":
			r = result(errclass.ClassNotSent)
		case "+":
			r = result(errclass.ClassNotSent)
			r.Behind = true
		}
		results[e] = r
		entries = append(entries, e)
	}
	return entries, results
}

func (p *play) batchOf(entries []*Entry) *Batch {
	lease := &Lease{Events: entries, MayPark: true, MayParkAway: true, BatchSize: len(entries)}
	return newBatch(&p.core.cfg, lease, nil, entries)
}

func parking(p *play, _ *Batch) { p.core.cfg.ParkKeys = true }

func severalWorkers(p *play, _ *Batch) { p.core.cfg.Concurrency = 2 }

func parkedKey(_ *play, b *Batch) { b.stateOf("a").parked = true }

func mayNotParkAway(_ *play, b *Batch) { b.Lease.MayParkAway = false }

func twoTargets(p *play, _ *Batch) { p.core.cfg.Targets = append(p.core.cfg.Targets, &toyTarget{}) }

func TestBatch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]batchCase{
		"all are done":                          {"a b a", nil, "a b a", "a done, b done, a done"},
		"a failure blocks those behind it":      {"a b! a c", nil, "a b", "a done, b retried, a waiting, c waiting"},
		"a failure parks its key":               {"a! b a c", parking, "a b c", "a parked, b done, a parked, c done"},
		"too many keys are parked":              {"a! b", func(p *play, b *Batch) { parking(p, b); b.Lease.MayPark = false }, "a", "a retried, b waiting"},
		"a refusal is final":                    {"a# b", nil, "a b", "a dead, b done"},
		"the last attempt":                      {"a! b", func(_ *play, b *Batch) { b.entries[0].Attempt = 3 }, "a b", "a dead, b done"},
		"a retry is not due":                    {"wa b", nil, "", "a waiting, b waiting"},
		"a retry is not due, several workers":   {"wa b a", func(p *play, _ *Batch) { p.core.cfg.Concurrency = 2 }, "b", "a waiting, b done, a waiting"},
		"what was done before":                  {"da b", nil, "b", "a done, b done"},
		"an unknown version":                    {"na a b", nil, "b", "a waiting, a waiting, b done"},
		"an unread topic":                       {"ua", nil, "a", "a done"},
		"the only target is away":               {"a? b", nil, "a", "a waiting, b waiting"},
		"one of two targets is away":            {"a? b a", twoTargets, "a b", "a parked, b done, a parked"},
		"a parked event's target is away":       {"pa? pa pb", twoTargets, "a b", "a waiting, a waiting, b done"},
		"the target admits nothing":             {"a b", func(p *play, _ *Batch) { p.target.admits = 1 }, "a", "a done, b waiting"},
		"not sent":                              {"a- b a", nil, "a", "a waiting, b waiting, a waiting"},
		"not sent, behind another":              {"a+ b", nil, "a", "a waiting, b waiting"},
		"not sent, parked meanwhile":            {"a-", func(_ *play, b *Batch) { b.stateOf("a").parked = true; b.entries[0].ParkedNo = 0 }, "", "a parked"},
		"a parked event fails":                  {"pa! pa pb", parking, "a b", "a retried, a waiting, b done"},
		"a failure does not block parked ones":  {"a! pb", nil, "a b", "a retried, b done"},
		"a parked event does not unblock":       {"a! pb c", nil, "a b", "a retried, b done, c waiting"},
		"a parked failure does not block":       {"pa! b", nil, "a b", "a retried, b done"},
		"no order among several workers":        {"a! b", severalWorkers, "a b", "a retried, b done"},
		"parked, after its key is":              {"pa b", parkedKey, "a b", "a done, b done"},
		"away, and too many keys are parked":    {"a? b", both(twoTargets, mayNotParkAway), "a", "a waiting, b waiting"},
		"stopping":                              {"a b", func(_ *play, b *Batch) { b.Stopping = true }, "", "a waiting, b waiting"},
		"two of a budget":                       {"a b c", func(_ *play, b *Batch) { b.budget = &budget{2} }, "a b", "a done, b done, c waiting"},
		"the lease is lost":                     {"a b", func(_ *play, b *Batch) { b.LoseLease() }, "", "a waiting, b waiting"},
		"the transaction is broken":             {"a b", func(_ *play, b *Batch) { b.BreakTx() }, "", "a waiting, b waiting"},
		"a target is back for a waiting event":  {"wa b", func(p *play, b *Batch) { b.entries[0].retry.away = p.target }, "a b", "a done, b done"},
		"one by one, a target is back":          {"wa b", func(p *play, b *Batch) { b.entries[0].retry.away = p.target; b.Lease.OneByOne = true }, "", "a waiting, b waiting"},
		"its target is back, but may not admit": {"wa", func(p *play, b *Batch) { b.entries[0].retry.away = p.target; p.target.admits = 0 }, "", "a waiting"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlay(t, nil)
			entries, results := p.entriesOf(c.keys)
			b := p.batchOf(entries)
			require.Equal(t, len(entries), b.Len())
			if c.set != nil {
				c.set(p, b)
			}
			var started []string
			for e := b.Next(p.now); e != nil; e = b.Next(p.now) {
				require.True(t, e.Running)
				started = append(started, e.Key)
				b.Finish(p.now, e, results[e])
			}
			require.Equal(t, c.started, strings.Join(started, " "))
			require.Equal(t, c.want, outcomes(entries))
		})
	}
}

// With several workers, the events of a key still run one after the other.
func TestBatchOfSeveralWorkers(t *testing.T) {
	t.Parallel()
	p := newPlay(t, func(c *Config) { c.Concurrency = 3 })
	entries, _ := p.entriesOf("a a b a")
	b := p.batchOf(entries)
	first, second := b.Next(p.now), b.Next(p.now)
	require.Equal(t, entries[0], first)
	require.Equal(t, entries[2], second)
	require.Nil(t, b.Next(p.now))
	require.Equal(t, "test/said 00000000-0000-0000-0000-000000000001, test/said 00000000-0000-0000-0000-000000000003", b.Running())
	b.Finish(p.now, first, errclass.Result{})
	require.Equal(t, entries[1], b.Next(p.now))
	b.Finish(p.now, second, errclass.Result{})
	b.Finish(p.now, entries[1], errclass.Result{})
	require.Equal(t, entries[3], b.Next(p.now))
	require.Equal(t, "a done, a done, b done, a waiting", outcomes(entries))
}

// What a handler returns after the end of its batch counts only as far as it is certain.
func TestBatchThatIsOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		over func(*Batch)
		want [2]Status // of an event that fails, and one that is done
	}{
		"lease lost":  {(*Batch).LoseLease, [2]Status{Waiting, Done}},
		"transaction": {(*Batch).BreakTx, [2]Status{Waiting, Waiting}},
		"abandoned":   {(*Batch).Abandon, [2]Status{Waiting, Waiting}},
		"well":        {func(*Batch) {}, [2]Status{Retried, Done}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i, r := range []errclass.Result{result(errclass.ClassFailed), {}} {
				p := newPlay(t, nil)
				entries, _ := p.entriesOf("a")
				b := p.batchOf(entries)
				b.Next(p.now)
				c.over(b)
				b.Finish(p.now, entries[0], r)
				require.Equal(t, c.want[i], entries[0].Status)
			}
		})
	}
}

// An event that waits for its target waits as long as the target says; those after the first one wait longer.
func TestBatchWaits(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	p.target.retryIn, p.target.laterDelay = time.Second, time.Minute
	entries, _ := p.entriesOf("a b c")
	b := p.batchOf(entries)
	b.wait(p.now, entries[0], "away", true)
	b.wait(p.now, entries[1], "away", false)
	require.Equal(t, time.Second, entries[0].retry.remaining(p.now))
	require.Equal(t, time.Minute, entries[1].retry.remaining(p.now))
	b.settle(p.now, entries[2], result(errclass.ClassNotSent), true)
	require.Equal(t, 10*time.Millisecond, entries[2].retry.remaining(p.now))
	b.Stopping = true
	entries, _ = p.entriesOf("d")
	b.settle(p.now, entries[0], result(errclass.ClassNotSent), true)
	require.Nil(t, entries[0].retry)
	b.stateOf("e").parked = true
	entries, _ = p.entriesOf("e pe")
	b.settle(p.now, entries[0], result(errclass.ClassNotSent), true)
	require.Equal(t, Parked, entries[0].Status)
	b.stateOf("e").stopped = true
	b.settle(p.now, entries[1], result(errclass.ClassFailed), true)
	require.Equal(t, Waiting, entries[1].Status, "a key has one head")
}

// sendAll begins a call with entries, which can all be encoded.
func sendAll(s *Sending, now time.Time, entries []*Entry) []*Entry {
	sent, _ := s.Encoded(now, entries, make([]errclass.Result, len(entries)))
	s.Begin(now, sent, len(sent))
	return sent
}

// sendCase is what a Sending does with the events of a batch; see batchCase.
func TestSending(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		keys string
		set  func(*play, *Batch)
		sent string // the keys of each call
		want string
	}{
		"all are sent":                  {"a b a", nil, "a b a", "a done, b done, a done"},
		"three per call":                {"a b c d e", nil, "a b c, d e", "a done, b done, c done, d done, e done"},
		"a failure":                     {"a! b a", parking, "a b a", "a parked, b done, a done"},
		"behind a failure":              {"a! a+ b", parking, "a a b", "a parked, a parked, b done"},
		"an unknown version":            {"na a b", nil, "b", "a waiting, a waiting, b done"},
		"an unread topic":               {"ua b", nil, "b", "a dead, b done"},
		"an unread topic, done before":  {"uda b", nil, "b", "a done, b done"},
		"what was done before":          {"da b", nil, "b", "a done, b done"},
		"a retry is not due":            {"wa a b", nil, "b", "a waiting, a waiting, b done"},
		"unavailable":                   {"a? b? c", twoTargets, "a b c", "a parked, b parked, c done"},
		"the target admits one":         {"a b c", func(p *play, b *Batch) { twoTargets(p, b); p.target.admits = 1 }, "a", "a done, b parked, c parked"},
		"stopping":                      {"a", func(_ *play, b *Batch) { b.Stopping = true }, "", "a waiting"},
		"two of a budget":               {"a b c", func(_ *play, b *Batch) { b.budget = &budget{2} }, "a b", "a done, b done, c waiting"},
		"a result from an earlier call": {"a b", func(p *play, _ *Batch) { p.target.late = map[uuid.UUID]errclass.Result{{15: 1}: {}} }, "b", "a done, b done"},
		"its key was parked":            {"a b", func(_ *play, b *Batch) { b.stateOf("a").parked = true }, "b", "a parked, b done"},
		"a refusal":                     {"a# b", nil, "a b", "a dead, b done"},
		"nothing":                       {"da", nil, "", "a done"},
		"parked, after its key is":      {"pa b", parkedKey, "a b", "a done, b done"},
		"two failures of a key":         {"a! a! b", nil, "a a b", "a retried, a retried, b done"},
		"a late failure from an early call": {"a a b", func(p *play, _ *Batch) {
			p.core.cfg.ParkKeys = true
			p.target.late = map[uuid.UUID]errclass.Result{{15: 1}: result(errclass.ClassFailed)}
		}, "b", "a parked, a parked, b done"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlay(t, nil)
			entries, results := p.entriesOf(c.keys)
			b := p.batchOf(entries)
			if c.set != nil {
				c.set(p, b)
			}
			var calls []string
			for _, s := range b.Sendings(result(errclass.ClassRefused)) {
				for call := s.Next(p.now, 3); len(call) > 0; call = s.Next(p.now, 3) {
					sent, places := s.Encoded(p.now, call, make([]errclass.Result, len(call)))
					require.Equal(t, call, sent)
					require.Len(t, places, len(sent))
					s.Begin(p.now, sent, len(sent))
					var keys []string
					var got []errclass.Result
					for _, e := range sent {
						keys, got = append(keys, e.Key), append(got, results[e])
					}
					calls = append(calls, strings.Join(keys, " "))
					late, _ := s.Sent(p.now, sent, got)
					require.False(t, late)
				}
			}
			require.Equal(t, c.sent, strings.Join(calls, ", "))
			require.Equal(t, c.want, outcomes(entries))
		})
	}
}

// Events that cannot be encoded are not sent, nor are those behind them.
func TestSendingEncodes(t *testing.T) {
	t.Parallel()
	p := newPlay(t, func(c *Config) { c.ParkKeys = true })
	entries, _ := p.entriesOf("a a b")
	b := p.batchOf(entries)
	s := b.Sendings(errclass.Result{})[0]
	sent, places := s.Encoded(p.now, s.Next(p.now, 9), []errclass.Result{result(errclass.ClassFailed), {}, {}})
	require.Equal(t, entries[2:], sent)
	require.Equal(t, []int{2}, places)
	require.Equal(t, "a parked, a parked, b waiting", outcomes(entries))
	require.False(t, entries[1].Started)
}

// A call that has stalled may outlive its lease, if its events can be parked.
func TestSendingLeavesACallBehind(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	twoTargets(p, nil)
	entries, _ := p.entriesOf("a b a")
	b := p.batchOf(entries)
	s := b.Sendings(errclass.Result{})[0]
	require.False(t, s.Stalled(p.now.Add(time.Hour), time.Second), "there is no call")
	call := sendAll(s, p.now, s.Next(p.now, 2))
	require.False(t, s.Stalled(p.now, time.Second))
	p.target.rests = true
	require.True(t, s.Stalled(p.now, time.Second))
	p.target.rests = false
	b.Lease.MayParkAway = false
	require.False(t, s.Stalled(p.now.Add(time.Hour), time.Second))
	b.Lease.MayParkAway = true
	require.True(t, s.Stalled(p.now.Add(time.Second), time.Second))
	s.LeaveBehind(p.now)
	require.True(t, p.target.abandoned)
	require.Equal(t, "a parked, b parked, a parked", outcomes(entries))
	late, keep := s.Sent(p.now, call, make([]errclass.Result, 2))
	require.True(t, late && keep)
	require.Equal(t, []uuid.UUID{{15: 1}, {15: 2}}, IDs(call))
}

// Results of a call whose batch is over are dropped, or count only as far as they are certain.
func TestSendingOfABatchThatIsOver(t *testing.T) {
	t.Parallel()
	p := newPlay(t, nil)
	entries, _ := p.entriesOf("a b")
	b := p.batchOf(entries)
	s := b.Sendings(errclass.Result{})[0]
	call := s.Next(p.now, 2)
	b.LoseLease()
	require.False(t, s.Stalled(p.now.Add(time.Hour), time.Second))
	late, keep := s.Sent(p.now, call, []errclass.Result{result(errclass.ClassFailed), {}})
	require.False(t, late || keep)
	require.Equal(t, "a waiting, b done", outcomes(entries))
	b.Abandon()
	late, keep = s.Sent(p.now, call, make([]errclass.Result, 2))
	require.True(t, late)
	require.False(t, keep)
}
