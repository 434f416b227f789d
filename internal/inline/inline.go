// Package inline marks a context so that Dispatcher.Drain runs handlers in the goroutine that called it,
// where a test's FailNow works. It keeps that mode out of the public API.
package inline

import "context"

type key struct{}

// With returns ctx, marked.
func With(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, true) }

// Marked reports whether ctx comes from With.
func Marked(ctx context.Context) bool { return ctx.Value(key{}) != nil }
