package core

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/outbox"
)

var (
	start   = time.Unix(1_000_000, 0)
	errTest = errors.New("down")
	another = uuid.UUID{0: 0xa}
)

// toyTarget is a target whose state a test sets.
type toyTarget struct {
	rests, back, restored, abandoned bool
	admits                           int // how many more events it admits
	retryIn, laterDelay              time.Duration
	late                             map[uuid.UUID]errclass.Result
	untried                          int
}

func (t *toyTarget) Resting() bool { return t.rests }

func (t *toyTarget) Why() errclass.Result {
	return errclass.Result{Class: errclass.ClassUnavailable, Text: "it rests"}
}

func (t *toyTarget) Admit(_ time.Time, n int) (int, errclass.Result) {
	n = min(n, t.admits)
	t.admits -= n
	return n, t.Why()
}

func (t *toyTarget) RetryIn(time.Time) time.Duration { return t.retryIn }
func (t *toyTarget) LaterDelay() time.Duration       { return t.laterDelay }
func (t *toyTarget) TakeReturned() bool              { return t.back }
func (t *toyTarget) Untried()                        { t.untried++ }
func (t *toyTarget) RestoreReturned()                { t.restored = true }
func (t *toyTarget) Abandon()                        { t.abandoned = true }

func (t *toyTarget) TakeLateResult(id uuid.UUID) (errclass.Result, bool) {
	r, is := t.late[id]
	return r, is
}

// play is a core with a clock that a test moves.
type play struct {
	t      testing.TB
	core   *Core
	target *toyTarget
	topic  *Topic
	now    time.Time
	last   []Command // of the latest step
	all    []Command // of all steps
	ids    byte
}

// toyConfig is the configuration of the cores of tests. There is no jitter.
func toyConfig() Config {
	return Config{
		Shards: 1, BatchSize: 2, LeaseBatches: 3, ParkedKeys: 20, Concurrency: 1, MaxAttempts: 3,
		BaseDelay: time.Second, MaxDelay: time.Minute, FirstPause: 10 * time.Millisecond, LeaseDuration: 30 * time.Second,
		PollInterval: time.Second, ShutdownTimeout: 20 * time.Second, PauseLimit: time.Second, LeaseAge: 50 * time.Millisecond,
		TakeOverAfter: 100 * time.Millisecond, Random: func(time.Duration) time.Duration { return 0 },
	}
}

func newPlay(t testing.TB, set func(*Config)) *play {
	p := &play{t: t, now: start, target: &toyTarget{admits: 1000}}
	p.topic = &Topic{Version: 1, Target: p.target}
	cfg := toyConfig()
	cfg.Targets = []Target{p.target}
	cfg.NewID = func() uuid.UUID {
		p.ids++
		return uuid.UUID{15: p.ids}
	}
	if set != nil {
		set(&cfg)
	}
	p.core = New(cfg)
	return p
}

// step tells the core what happened.
func (p *play) step(in Event) {
	p.last = append([]Command(nil), p.core.Step(p.now, in)...)
	p.all = append(p.all, p.last...)
}

// wait moves the clock.
func (p *play) wait(d time.Duration) { p.now = p.now.Add(d) }

// latest returns the latest command of type T.
func latest[T Command](p *play) (cmd T) {
	p.t.Helper()
	for i := len(p.all) - 1; i >= 0; i-- {
		if c, is := p.all[i].(T); is {
			return c
		}
	}
	require.Fail(p.t, "no such command", "%T among %s", cmd, describe(p.now, p.all))
	return cmd
}

// event returns an event of the log, of its own key.
func (p *play) event(seq int64) *Entry {
	return &Entry{
		Event: outbox.Event{Namespace: "test", Topic: "said", ID: uuid.UUID{15: byte(seq)}, Version: 1}, Seq: seq,
		Key: fmt.Sprint("k", seq), Of: p.topic,
	}
}

func (p *play) parkedEvent(no int64) *Entry {
	e := p.event(-no)
	e.ParkedNo, e.Key, e.Taken = no, fmt.Sprint("k", no), 1
	return e
}

// taken answers a round trip with a lease of events with these seqs, which came from so many positions.
func (p *play) taken(set func(*Lease), seqs ...int64) RoundTripDone {
	take := latest[RoundTrip](p).Take
	lease := &Lease{
		ID: take.ID, No: take.AfterNo + 1, Shards: 1, BatchSize: take.BatchSize, ScanSize: take.ScanSize, Deadline: p.now.Add(30 * time.Second),
		MayPark: true, MayParkAway: true,
	}
	if take.Read {
		for _, seq := range seqs {
			lease.Events = append(lease.Events, p.event(seq))
			lease.Scanned, lease.ScannedTo = lease.Scanned+1, seq
		}
	}
	if set != nil {
		set(lease)
	}
	return RoundTripDone{Ours: true, Lease: lease, Took: time.Millisecond}
}

// nothing answers a round trip: there is nothing to take.
func (p *play) nothing() RoundTripDone {
	return RoundTripDone{Ours: true, Lease: &Lease{}, Took: time.Millisecond}
}

// checking brings the core to its first check.
func (p *play) checking() { p.step(Started{}) }

// taking brings it to its first lease.
func (p *play) taking() {
	p.checking()
	p.step(checked(nil))
}

// sleeping brings it to sleep, because of what set says that it waits for.
func (p *play) sleeping(set func(*Wait)) {
	p.checking()
	p.step(checked(set))
	p.step(p.nothing())
}

// handling brings it to handle a lease of events with these seqs.
func (p *play) handling(set func(*Lease), seqs ...int64) {
	p.taking()
	p.step(p.taken(set, seqs...))
}

// handled runs all handlers of the batch, with result of for each seq, and returns the answer.
func (p *play) handled(of func(seq int64) errclass.Result) Handled {
	b := p.core.batch
	for e := b.Next(p.now); e != nil; e = b.Next(p.now) {
		r := errclass.Result{}
		if of != nil {
			r = of(e.Seq)
		}
		b.Finish(p.now, e, r)
	}
	return Handled{Batch: b}
}

// ending brings it to end the lease of events with these seqs.
func (p *play) ending(seqs ...int64) {
	p.handling(nil, seqs...)
	p.step(p.handled(nil))
}

// failing is the result of a failed attempt.
func failing(int64) errclass.Result {
	return errclass.Result{Class: errclass.ClassFailed, Text: "it fails"}
}

// checked answers Check: the shard had lease 7, and nothing is to be waited for, unless set says so.
func checked(set func(*Wait)) Checked {
	w := Wait{Shards: 1, LeaseNo: 7, In: -1}
	if set != nil {
		set(&w)
	}
	return Checked{Wait: w}
}

// describe lists commands with what matters of them.
func describe(now time.Time, commands []Command) (all []string) {
	for _, cmd := range commands {
		name := strings.TrimPrefix(fmt.Sprintf("%T", cmd), "core.")
		if about := about(now, cmd); about != "" {
			name += "(" + about + ")"
		}
		all = append(all, strings.ToLower(name[:1])+name[1:])
	}
	return all
}

func about(now time.Time, cmd Command) string {
	var all []string
	say := func(is bool, what string) {
		if is {
			all = append(all, what)
		}
	}
	switch cmd := cmd.(type) {
	case RoundTrip:
		if a := cmd.End; a != nil {
			say(true, "end")
			say(a.Release, "release")
			say(a.HandTo.Valid, "hand over")
			say(a.LetLeaseExpire, "let the lease expire")
		}
		if t := cmd.Take; t != nil {
			say(true, "take")
			say(t.TakeOver, "take over")
			say(!t.Read, "what was read ahead")
		}
	case TakeParked:
		return fmt.Sprintf("%d keys, %d events each", cmd.Keys, cmd.Events)
	case Timer:
		return cmd.At.Sub(now).String()
	case Report:
		say(true, [...]string{"checking", "working", "idle", "waiting"}[cmd.Activity])
		say(cmd.Pause > 0, "pause "+cmd.Pause.String())
	case WakeOthers:
		say(cmd.HandedOver, "handed over")
	case TellTaken:
		say(cmd.Lease == nil, "nothing")
		say(cmd.Continued, "continued")
		say(cmd.Carried, "carried")
	case TellEnd:
		say(cmd.InTx, "in the transaction")
		say(!cmd.Ours, "lost")
	case TellUndone:
		say(cmd.Ours, "ended")
	case TellNewer:
		say(cmd.Handed, "handed over")
	case Commit:
		say(cmd.End.Release, "release")
		say(cmd.End.HandTo.Valid, "hand over")
	}
	return strings.Join(all, ", ")
}
