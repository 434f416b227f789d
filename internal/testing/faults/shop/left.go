package shop

import (
	"bytes"
	"runtime"
	"strings"
	"time"

	"github.com/outboxgen/outboxgen/internal/testing/faults/check"
)

const (
	product  = "github.com/outboxgen/outboxgen/"
	campaign = product + "internal/testing/faults"
	// leftPatience is how long goroutines have to end after their runner, publisher or consumer has.
	leftPatience = 2 * time.Second
)

// left says which goroutines a process still has when all that it ran has ended in order. Those of libraries are not
// looked at: they may wait for a network that is cut.
func (j *Journal) left() {
	var goroutines []string
	for until := time.Now().Add(leftPatience); ; time.Sleep(10 * time.Millisecond) {
		if goroutines = ofProduct(stacks()); len(goroutines) == 0 || time.Now().After(until) {
			break
		}
	}
	for _, stack := range goroutines {
		j.must(check.Line{Kind: check.Behind, Say: stack})
	}
}

// stacks returns the stack of each goroutine but this one.
func stacks() []string {
	text := make([]byte, 1<<20)
	text = text[:runtime.Stack(text, true)]
	_, text, _ = bytes.Cut(text, []byte("\n\n"))
	return strings.Split(string(text), "\n\n")
}

// ofProduct returns the stacks in which the product has a call, or which it has begun.
func ofProduct(stacks []string) (of []string) {
	for _, stack := range stacks {
		for line := range strings.Lines(stack) {
			line = strings.TrimPrefix(line, "created by ")
			if strings.HasPrefix(line, product) && !strings.HasPrefix(line, campaign) {
				of = append(of, stack)
				break
			}
		}
	}
	return of
}
