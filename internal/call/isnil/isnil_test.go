package isnil_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/isnil"
)

func TestIs(t *testing.T) {
	t.Parallel()
	var typed *bytes.Buffer
	var reader io.Reader = typed
	for _, v := range []any{nil, typed, reader, map[string]int(nil), (chan int)(nil), (func())(nil)} {
		require.True(t, isnil.Is(v), "%T", v)
	}
	for _, v := range []any{new(bytes.Buffer), 0, "", struct{}{}, map[string]int{}, func() {}, []int(nil)} {
		require.False(t, isnil.Is(v), "%T", v)
	}
}

// Every enqueue calls Is.
func TestIsDoesNotAllocate(t *testing.T) { // not parallel: AllocsPerRun counts the allocations of the whole process
	v := any(new(bytes.Buffer))
	require.Zero(t, testing.AllocsPerRun(10, func() { isnil.Is(v) }))
}
