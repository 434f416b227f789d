package outbox_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
)

// TestDrainReportAsJSON: a report survives JSON, in which its end is a word.
func TestDrainReportAsJSON(t *testing.T) {
	t.Parallel()
	for end, name := range map[outbox.DrainEnd]string{outbox.EndDrained: "drained", outbox.EndEvents: "events", outbox.EndTime: "time", outbox.EndStopped: "stopped"} {
		require.Equal(t, name, end.String())
		r := outbox.DrainReport{Delivered: 1, Retried: 2, Dead: 3, Lost: 4, HandedBack: 5, Resting: []string{"kafka:users"}, Ended: end}
		text, err := json.Marshal(r)
		require.NoError(t, err)
		require.JSONEq(t, `{"delivered": 1, "retried": 2, "dead": 3, "lost": 4, "handed_back": 5, "resting": ["kafka:users"], "ended": "`+name+`"}`, string(text))
		var back outbox.DrainReport
		require.NoError(t, json.Unmarshal(text, &back))
		require.Equal(t, r, back)
	}
	_, err := json.Marshal(outbox.DrainEnd(9))
	require.ErrorContains(t, err, "9 is not a valid DrainEnd")
	require.Equal(t, "DrainEnd(9)", outbox.DrainEnd(9).String())
	require.ErrorContains(t, json.Unmarshal([]byte(`"never"`), new(outbox.DrainEnd)), `"never" is not a valid DrainEnd`)
}
