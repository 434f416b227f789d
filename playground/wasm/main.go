//go:build js && wasm

// Command wasm is the generator for the page of the playground. It gives the page one function, outboxgen, which takes
// a question of package playground as a text and returns the answer.
package main

import (
	"runtime/debug"
	"syscall/js"

	"github.com/outboxgen/outboxgen/playground"
)

func main() {
	debug.SetGCPercent(400) // each change makes some megabytes of garbage, and answers should be quick
	var session playground.Session
	js.Global().Set("outboxgen", js.FuncOf(func(_ js.Value, args []js.Value) any {
		return string(session.Answer([]byte(args[0].String())))
	}))
	select {} // the page calls
}
