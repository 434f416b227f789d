// Package shop is what the campaign of faults is about: writers, workers and consumers of a shop, each of which runs as a
// process of its own. What they do goes to the history, a file that all of them append to.
package shop

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/testing/faults/check"
)

// Journal appends lines to the history. Any number of goroutines and processes may do so at once, and the lines stand in
// the order of their appends.
type Journal struct {
	who   string
	file  *os.File
	calls atomic.Int64
}

// OpenJournal opens or creates the file at path for the lines of one process.
func OpenJournal(path, who string) (*Journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open history: %w", err)
	}
	return &Journal{who: who, file: f}, nil
}

// Add appends a line with one write, so that it survives the death of this process. A line begins with a newline: one that
// a kill has cut off does not damage the next.
func (j *Journal) Add(l check.Line) error {
	l.At, l.Who = realNow().UnixMicro(), j.who
	text, err := json.Marshal(l)
	if err == nil {
		_, err = j.file.Write(append([]byte{'\n'}, text...))
	}
	if err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	return nil
}

// must is for what a process cannot go on without: a line that is missing would be a false alarm.
func (j *Journal) must(l check.Line) {
	if err := j.Add(l); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(exitBroken)
	}
}

// transaction says how the transaction of events ends.
func (j *Journal) transaction(tx uuid.UUID, say string, events []check.ID) {
	if len(events) > 0 {
		j.must(check.Line{Kind: check.Tx, Tx: tx.String(), Say: say, Events: events})
	}
}

// call says what a handler does.
func (j *Journal) call(handler string, g *got, say string) {
	j.must(check.Line{Kind: check.Call, Say: say, Event: check.ID(g.id), Handler: handler, Attempt: g.attempt, Topic: g.topic, Item: g.item, N: g.n})
}

// leased says that a handler begins, and what becomes of it: say says so, and end says it for the last time. If ctx ends before, it
// was told to let go of the event.
func (j *Journal) leased(ctx context.Context, handler string, g *got) (end func(say string)) {
	l := check.Line{
		Kind: check.Call, Event: check.ID(g.id), Handler: handler, Attempt: g.attempt, Topic: g.topic, Item: g.item, N: g.n, Call: j.calls.Add(1),
	}
	say := func(what string) {
		line := l
		line.Say = what
		j.must(line)
	}
	say(check.Start)
	untold := context.AfterFunc(ctx, func() { say(check.Told) })
	return func(what string) {
		untold()
		say(what)
	}
}

// watchEvery is how often a process looks whether it has stood still.
const watchEvery = 20 * time.Millisecond

// watch says when this process has stood still, whatever the reason.
func (j *Journal) watch() {
	for last := realNow(); ; {
		time.Sleep(watchEvery)
		now := realNow()
		if gap := now.Sub(last); gap > check.StandsStill {
			j.must(check.Line{Kind: check.Still, For: (gap + watchEvery).Microseconds()})
		}
		last = now
	}
}

// realNow is the time of the machine, also in a process whose time.Now jumps.
func realNow() time.Time {
	var at syscall.Timeval
	_ = syscall.Gettimeofday(&at) // it cannot fail
	return time.Unix(at.Unix())
}
