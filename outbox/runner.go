package outbox

import "context"

// runnerKey is where a context keeps its runner.
type runnerKey struct{}

// ContextWithRunner returns a copy of ctx for the handlers of r. Dispatchers and listeners call it.
func ContextWithRunner(ctx context.Context, r Runner) context.Context {
	return context.WithValue(ctx, runnerKey{}, r)
}

// RunnerFromContext returns the dispatcher or listener that a handler, a middleware or a publisher is called by, given
// its context, and false for another context.
func RunnerFromContext(ctx context.Context) (Runner, bool) {
	r, ok := ctx.Value(runnerKey{}).(Runner)
	return r, ok
}
