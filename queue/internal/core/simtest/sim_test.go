package coresim

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRandomSchedules plays schedules for OUTBOXGEN_SIM_SECONDS, one second if it is not set. OUTBOXGEN_SIM_SEED plays
// one, and with -v tells what happens.
func TestRandomSchedules(t *testing.T) {
	t.Parallel()
	if text := os.Getenv("OUTBOXGEN_SIM_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		stats, err := Run(seed, t.Logf)
		require.NoError(t, err)
		t.Logf("%+v", stats)
		return
	}
	seconds := 1.0
	if text := os.Getenv("OUTBOXGEN_SIM_SECONDS"); text != "" {
		var err error
		seconds, err = strconv.ParseFloat(text, 64)
		require.NoError(t, err)
	}
	began, n, total := time.Now(), 0, Stats{}
	for seed := uint64(began.UnixNano()); time.Since(began).Seconds() < seconds; seed++ {
		stats, err := Run(seed, nil)
		require.NoError(t, err, "OUTBOXGEN_SIM_SEED=%d repeats it", seed)
		n++
		total.add(stats)
	}
	t.Logf("%d schedules: %+v", n, total)
}
