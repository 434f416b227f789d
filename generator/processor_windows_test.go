package generator_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// processorTime returns the time that this process has used on all processors.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	self, err := syscall.GetCurrentProcess()
	require.NoError(t, err)
	var created, ended, kernel, user syscall.Filetime
	require.NoError(t, syscall.GetProcessTimes(self, &created, &ended, &kernel, &user))
	ticks := func(t syscall.Filetime) int64 { return int64(t.HighDateTime)<<32 | int64(t.LowDateTime) }
	return time.Duration(ticks(kernel)+ticks(user)) * 100 // a tick is 100 ns
}
