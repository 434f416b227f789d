// Package inline marks a context so that Dispatcher.Drain runs handlers in the calling goroutine, where a test's
// FailNow works. It keeps that mode out of the public API.
package inline

import "context"

type key struct{}

// With returns ctx with the mark.
func With(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, true) }

// Marked reports whether ctx has the mark.
func Marked(ctx context.Context) bool { return ctx.Value(key{}) != nil }
