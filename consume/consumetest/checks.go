package consumetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// checks are those of the suite.
func checks() []check {
	list := []check{
		{name: "everything is applied once and in order", run: everythingApplied},
		{name: "what is not settled is not acknowledged", run: unsettledIsKept},
		{name: "several processes", run: severalProcesses},
		{name: "every method at once", run: everyMethod},
		{name: "a rebalance", slow: true, run: rebalance},
		{name: "killed processes", slow: true, run: killed},
	}
	for _, r := range rows {
		for _, batch := range []int{1, 100} {
			list = append(list, check{name: fmt.Sprintf("a method %s, batches of %d", r.name, batch), slow: true, run: func(b *bench) {
				b.methods([]row{r}, batch)
			}})
		}
	}
	return list
}

func everythingApplied(b *bench) {
	keys := []string{"a", "b", "c", "d", "e"}
	r := b.start(&effects{}, config(10))
	b.put(20, keys...)
	b.requireSettled(want{n: 20, keys: keys}, r)
	b.stop(r)
	b.requireClean()
}

// everyMethod has a message for each thing that a method can do. With -short it leaves out what takes seconds.
func everyMethod(b *bench) {
	list := slices.Clone(rows)
	if testing.Short() {
		list = slices.DeleteFunc(list, func(r row) bool { return r.hangs || r.disconnects })
	}
	b.methods(list, 100)
}

// The bad messages of a row. Each has a key of its own, and the same number.
const (
	always = "always" // is bad whenever it is tried
	once   = "once"   // at the first attempt
	late   = "late"   // until it was parked and tried again
	twice  = "twice"  // is bad always, and another one behind it until it was parked
	good   = "good"   // has no bad message
	steps  = 5        // of each key
)

// lateCalls is how often a method is called until a message that fails was parked and tried again: in a batch, alone, alone
// once more, and by Run.
const lateCalls = 4

// methods has a method do what rows say for one message of a key.
func (b *bench) methods(rows []row, batch int) {
	w := want{n: steps, keys: []string{good, "other"}, dead: make(map[step]string)}
	cfg := config(batch)
	byName := make(map[string]row)
	for _, r := range rows {
		byName[r.name] = r
		kinds := []string{always, once, late, twice}
		if r.passes {
			kinds = []string{once, late}
		}
		if r.permanent { // it may be tried once or twice
			kinds = []string{always, twice}
		}
		for _, kind := range kinds {
			w.keys = append(w.keys, r.name+"/"+kind)
			at := step{r.name + "/" + kind, 2}
			if r.dead != "" && (kind == always || kind == twice) {
				w.dead[at] = r.dead
			}
			if kind == twice && r.permanent {
				w.dead[step{at.Key, 4}] = r.dead
			}
		}
		switch { // on a busy machine methods that do not hang may exceed these times, too
		case r.hangs && len(rows) == 1:
			cfg.EffectTimeout, cfg.MaxAttempts = 300*time.Millisecond, 2*maxAttempts
		case r.hangs:
			cfg.EffectTimeout = 700 * time.Millisecond // the last attempt of the others must say what they do wrong
		}
	}
	e := &effects{then: func(ctx context.Context, tx pgx.Tx, s step, call int) error {
		name, kind, _ := strings.Cut(s.Key, "/")
		r, is := byName[name]
		bad := is && (s.N == 2 && (kind == always || kind == twice || kind == once && call == 1 || kind == late && call <= lateCalls) ||
			s.N == 4 && kind == twice && call <= lateCalls)
		if !bad {
			return nil
		}
		return r.do(ctx, tx, b.pool)
	}}
	b.put(steps, w.keys...)
	r := b.start(e, cfg)
	b.requireSettled(w, r)
	b.put(steps, "afterwards") // there are still slots and connections
	w.keys = append(w.keys, "afterwards")
	b.requireSettled(w, r)
	b.stop(r)
	b.requireClean()
}

// quiet is how long nothing is settled when everything is that does not wait.
const quiet = 300 * time.Millisecond

// unsettledIsKept stops a receiver whose methods run, and continues with another one.
func unsettledIsKept(b *bench) {
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"}
	var inside atomic.Bool
	e := &effects{then: func(ctx context.Context, _ pgx.Tx, s step, _ int) error {
		if s.N < 3 || s.Key != "a" { // other keys are settled behind it
			return nil
		}
		inside.Store(true)
		<-ctx.Done()
		return ctx.Err()
	}}
	b.put(steps, keys...)
	cfg := config(1)
	cfg.Concurrency, cfg.ShutdownTimeout = 4, 100*time.Millisecond
	r := b.start(e, cfg)
	before, since := 0, time.Now()
	b.eventually(func() string {
		if n := b.settled(); n != before {
			before, since = n, time.Now()
		}
		if !inside.Load() || time.Since(since) < quiet {
			return "messages are not settled, or still are"
		}
		return ""
	}, r)
	b.requireUnacknowledged()
	b.stop(r)
	b.requireUnacknowledged()
	b.requireClean()

	r = b.start(&effects{}, config(100))
	b.requireSettled(want{n: steps, keys: keys}, r)
	b.stop(r)
	b.requireClean()
}

// requireUnacknowledged fails if the broker has less than what is not settled.
func (b *bench) requireUnacknowledged() {
	b.Helper()
	if b.Pending == nil {
		return
	}
	n, err := b.Pending(context.Background())
	if err != nil {
		b.Fatalf("Broker.Pending: %v", err)
	}
	if settled := b.settled(); n+settled < len(b.sent) { // settled can only have grown since
		b.Fatalf("%d messages were sent and %d are settled, but only %d are not acknowledged", len(b.sent), settled, n)
	}
}

// severalProcesses has a second receiver join, and the first one leave, while messages flow.
func severalProcesses(b *bench) {
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	b.churn(keys, func(round int, rs []*running, e *effects) []*running {
		rs = append(rs, b.start(e, config(10)))
		b.put(10, names(keys, round)...)
		b.stop(rs[0])
		return rs[1:]
	})
}

// rebalance has the broker distribute its messages again while messages flow.
func rebalance(b *bench) {
	if b.Rebalance == nil {
		b.Skip("the broker has no rebalance")
	}
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	b.churn(keys, func(round int, rs []*running, e *effects) []*running {
		if len(rs) < 2 {
			rs = append(rs, b.start(e, config(10)))
		}
		before := e.count()
		b.put(10, names(keys, round)...)
		b.eventually(func() string {
			if e.count() < before+len(keys) {
				return "messages are not tried"
			}
			return ""
		}, rs...)
		ctx, cancel := context.WithTimeout(context.Background(), b.Patience)
		defer cancel()
		if err := b.Rebalance(ctx); err != nil {
			b.Fatalf("Broker.Rebalance: %v", err)
		}
		return rs
	})
}

// names are keys of a round.
func names(keys []string, round int) (list []string) {
	for _, key := range keys {
		list = append(list, fmt.Sprintf("%s%d", key, round))
	}
	return list
}

// pace is how long a method takes, so that changes come in the middle of a batch.
const pace = 2 * time.Millisecond

// churn runs change between messages of which some fail.
func (b *bench) churn(keys []string, change func(round int, rs []*running, e *effects) []*running) {
	const rounds = 3
	e := &effects{then: func(_ context.Context, _ pgx.Tx, s step, call int) error {
		<-time.After(pace)
		switch {
		case s.N == 4 && call <= lateCalls && s.Key < "d":
			return errRefused
		case s.N == 6 && s.Key < "c":
			panic("a secret")
		}
		return nil
	}}
	w := want{n: 10, dead: make(map[step]string)}
	rs := []*running{b.start(e, config(10))}
	for round := range rounds {
		rs = change(round, rs, e)
		before := len(w.keys)
		w.keys = append(w.keys, names(keys, round)...)
		for _, key := range w.keys[before:] {
			if key < "c" {
				w.dead[step{key, 6}] = "panicked"
			}
		}
	}
	b.requireSettled(w, rs...)
	for _, r := range rs {
		b.stop(r)
	}
	b.requireClean()
}
