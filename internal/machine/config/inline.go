package config

import "context"

type inlineKey struct{}

// Inline returns ctx with a mark: Drain of a dispatcher or listener runs handlers in the calling goroutine, where a
// test's FailNow works. It keeps that mode out of the public API.
func Inline(ctx context.Context) context.Context { return context.WithValue(ctx, inlineKey{}, true) }

// IsInline reports whether ctx has the mark of Inline.
func IsInline(ctx context.Context) bool { return ctx.Value(inlineKey{}) != nil }
