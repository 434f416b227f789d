package prometheus

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
)

// TestRestOfAnEndedRunner: a dispatcher that ended while a target rested, such as that of a drain, is forgotten. One that
// still claims is not.
func TestRestOfAnEndedRunner(t *testing.T) {
	t.Parallel()
	c, err := New(Config{})
	require.NoError(t, err)
	now := time.Now()
	c.now = func() time.Time { return now }
	ended, running := outbox.Runner{Namespace: "shop", WorkerID: [16]byte{1}}, outbox.Runner{Namespace: "shop", WorkerID: [16]byte{2}}
	for _, r := range []outbox.Runner{ended, running} {
		c.observer.Resting(r, "kafka", errors.New("away"))
	}
	now = now.Add(silent)
	c.observer.Claimed(running, nil, 1)
	now = now.Add(time.Second)
	c.collectResting(make(chan prometheus.Metric, 1))
	require.Len(t, c.resting[rest{"kafka", "shop", ""}], 1)
	require.Contains(t, c.resting[rest{"kafka", "shop", ""}], running)
}
