package outboxtest_test

import (
	"context"
	"fmt"
	"log"
	"testing"
)

func TestMain(m *testing.M) {
	run = runInExample
	m.Run()
}

// exampleT is the testing.TB of a test that runs in an example.
type exampleT struct {
	testing.TB
	ctx      context.Context
	cleanups []func()
}

func (e *exampleT) Helper()                           {}
func (e *exampleT) Context() context.Context          { return e.ctx }
func (e *exampleT) Cleanup(f func())                  { e.cleanups = append(e.cleanups, f) }
func (e *exampleT) Fatal(args ...any)                 { log.Fatal(args...) }
func (e *exampleT) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }
func (e *exampleT) Errorf(format string, args ...any) { fmt.Printf(format, args...) } // differs from the output

// runInExample runs test as the package testing does.
func runInExample(test func(t testing.TB)) {
	ctx, cancel := context.WithCancel(context.Background())
	t := &exampleT{ctx: ctx}
	defer func() {
		for i := len(t.cleanups) - 1; i >= 0; i-- {
			t.cleanups[i]()
		}
	}()
	defer cancel() // before the cleanups, as in a test
	test(t)
}
