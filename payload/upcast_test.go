package payload_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/payload"
)

type (
	finishedV1 struct{ Seconds int }
	finished   struct{ Took time.Duration }
)

func upcastFinishedV1(old finishedV1) (finished, error) {
	return finished{Took: time.Duration(old.Seconds) * time.Second}, nil
}

// Generated code makes the steps, from functions that you write.
func ExampleUpcast() {
	step := payload.Upcast[finishedV1, finished](1, upcastFinishedV1)
	made, err := step.Step(&finishedV1{Seconds: 90})
	fmt.Println(made.(*finished).Took, err)
	// Output: 1m30s <nil>
}

func TestUpcasterSaysWhereItStarts(t *testing.T) {
	t.Parallel()
	step := payload.Upcast(7, upcastFinishedV1)
	require.Equal(t, 7, step.Version())
	require.Equal(t, "payload_test.finishedV1", step.From().String())
}
