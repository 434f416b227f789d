// Package usercode calls user code: handlers, publishers, codecs, methods of returned errors, loggers. Whatever such
// code does, the caller continues. A panic and runtime.Goexit become an error with a stack, and so does a call that
// does not return within its limit.
package usercode

import (
	"bytes"
	"fmt"
	"math"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// Limit is how long a call may take that has no reason to wait for anything: the methods of an error, a key, a header.
const Limit = 5 * time.Second

// Never is the limit of a call that may take any time.
const Never = time.Duration(math.MaxInt64)

// Crash is the error of a call that panicked or ended its goroutine. Its text ends with the stack of the call.
type Crash struct {
	What  string // what was called, for example "handler"
	How   string // "panicked: ..." or "called runtime.Goexit"
	Kind  string // the type of the panic's value, or ""
	Stack string // from the call on, without the frames of the recovery
}

// Error says what happened to the call, and where.
func (c *Crash) Error() string {
	return strings.TrimPrefix(c.What+" "+c.How+"\n"+c.Stack, " ")
}

// Private returns err, and for a *Crash one with the type of the panic's value instead of the value, which may hold a
// payload.
func Private(err error) error {
	c, is := err.(*Crash) // ours, as it came from the guard
	if !is || c.Kind == "" {
		return err
	}
	private := *c
	private.How = "panicked (" + c.Kind + ")"
	return &private
}

// Run calls call in this goroutine, and then done with its error. It recovers from a panic. It cannot stop
// runtime.Goexit, which still ends the goroutine, but done is called first.
func Run(what string, call func() error, done func(error)) {
	var err error
	returned := false
	defer func() {
		r := recover()
		if !returned {
			err = crash(what, r)
		}
		done(err)
	}()
	err = call()
	returned = true
}

// Recover calls call in this goroutine and returns its error, or a *Crash if it panicked. It is for callers whose
// goroutine is the caller's own, which runtime.Goexit may end.
func Recover(what string, call func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = crash(what, r)
		}
	}()
	return call()
}

// Call calls call in a separate goroutine and returns its error. After limit it returns an error that says so. call may
// then still be running, and must not write what the caller reads.
func Call(what string, limit time.Duration, call func() error) error {
	return Each(what, 1, limit, func(int) (func(), error) { return nil, call() })[0]
}

// Each calls call for 0 to n-1, one after the other, and returns the error of each call: one that panics, ends its
// goroutine or does not return within limit fails alone. The function that a call returns, if any, keeps its result:
// it runs before Each returns, unless the call took too long.
func Each(what string, n int, limit time.Duration, call func(i int) (keep func(), err error)) []error {
	errs := make([]error, n)
	for next := 0; next < n; {
		next = each(what, next, n, limit, call, errs)
	}
	return errs
}

// each calls call from next on. If the goroutine of the calls cannot be used any more, it returns the number to
// continue with.
func each(what string, next, n int, limit time.Duration, call func(i int) (func(), error), errs []error) int {
	var mu sync.Mutex // guards left, at and errs, also against calls that return too late
	left, at := false, next
	progress := func(i int, keep func(), err error) bool {
		mu.Lock()
		defer mu.Unlock()
		if left {
			return false
		}
		if errs[i] = err; err == nil && keep != nil {
			keep()
		}
		at = i + 1
		return true
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for i, going := next, true; i < n && going; i++ {
			var keep func()
			Run(what, func() (err error) {
				keep, err = call(i)
				return err
			}, func(err error) { going = progress(i, keep, err) })
		}
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for seen := next; ; {
		select {
		case <-over:
			mu.Lock()
			defer mu.Unlock()
			return at
		case <-timer.C:
			mu.Lock()
			if at == seen && at < n {
				left = true
				errs[at] = fmt.Errorf("%s did not return within %s", what, limit)
				mu.Unlock()
				return at + 1
			}
			seen = at
			mu.Unlock()
			timer.Reset(limit)
		}
	}
}

func crash(what string, r any) *Crash {
	c := &Crash{What: what, How: "called runtime.Goexit", Stack: string(callStack(debug.Stack()))}
	if r != nil {
		c.How, c.Kind = "panicked: "+panicText(r), fmt.Sprintf("%T", r)
	}
	return c
}

// panicText formats the value of a panic, whose methods may panic as well. It leaves room for the stack.
func panicText(r any) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("%T", r)
		}
	}()
	return fmt.Sprintf("%.1000v", r)
}

// callStack drops the frames of the recovery from a stack, because what keeps it has little room.
func callStack(stack []byte) []byte {
	for _, first := range []string{"\npanic(", "\nruntime.Goexit("} {
		if _, frames, ok := bytes.Cut(stack, []byte(first)); ok {
			if _, frames, ok = bytes.Cut(frames, []byte("\n\t")); ok { // its file and line
				_, frames, _ = bytes.Cut(frames, []byte("\n"))
				return frames
			}
		}
	}
	return stack
}
