// Package signals stops a program gracefully. It imports only the standard library.
package signals

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Context returns a context for the whole of a program that runs until it is told to stop. It ends with parent, and
// with the first SIGTERM or interrupt (SIGINT, Ctrl-C). So the program stops gracefully, and its exit status is its
// own:
//
//   - More SIGTERMs have no effect, however many there are and however late: those that schedulers, timeout(1) or a
//     nervous operator send cannot end a process that is just about to exit with 0.
//   - A second interrupt has its default effect and ends the process at once, for a person who does not want to wait.
//
// Call it once, at the beginning of main. There is nothing to release: the signals are handled until the process has
// ended. With signal.NotifyContext, whose stop function gives them back before main returns, a late SIGTERM would end
// the process with an error.
func Context(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	terminated, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	interrupted, giveBack := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(terminated, func() { cancel(context.Cause(terminated)) })
	context.AfterFunc(interrupted, func() {
		giveBack() // before anything stops, so that whoever sees that it stops can interrupt again
		cancel(context.Cause(interrupted))
	})
	return ctx
}
