package queue

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTasksKnowTheirPayloads: the core does not see the payload, but how large it is.
func TestTasksKnowTheirPayloads(t *testing.T) {
	t.Parallel()
	tasks := tasksOf([]*Claimed{{Payload: json.RawMessage(`{"n": 1}`)}, {}})
	require.Equal(t, 8, tasks[0].Bytes)
	require.Zero(t, tasks[1].Bytes)
}
