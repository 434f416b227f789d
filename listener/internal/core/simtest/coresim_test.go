package coresim

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSchedules plays random schedules for as long as OUTBOXGEN_SIM_SECONDS says; 0 or nothing means one second.
// OUTBOXGEN_SIM_SEED repeats one.
func TestSchedules(t *testing.T) {
	t.Parallel()
	if text := os.Getenv("OUTBOXGEN_SIM_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		require.NoError(t, Run(seed))
		return
	}
	seconds := 1.0
	if text := os.Getenv("OUTBOXGEN_SIM_SECONDS"); text != "" {
		var err error
		seconds, err = strconv.ParseFloat(text, 64)
		require.NoError(t, err)
	}
	first := uint64(time.Now().UnixNano()) % 1_000_000_000
	n := uint64(0)
	for end := time.Now().Add(time.Duration(seconds * float64(time.Second))); time.Now().Before(end); n++ {
		require.NoError(t, Run(first+n), "repeat it with OUTBOXGEN_SIM_SEED=%d", first+n)
	}
	t.Logf("%d schedules, from seed %d", n, first)
}
