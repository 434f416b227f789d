package lsp_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// processorTime returns how long processors have worked for this process. Unlike the time of day it does not depend on
// what else the machine does.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	self, err := syscall.GetCurrentProcess()
	require.NoError(t, err)
	var created, exited, kernel, user syscall.Filetime
	require.NoError(t, syscall.GetProcessTimes(self, &created, &exited, &kernel, &user))
	ticks := func(f syscall.Filetime) int64 { return int64(f.HighDateTime)<<32 | int64(f.LowDateTime) }
	return time.Duration(100 * (ticks(kernel) + ticks(user)))
}
