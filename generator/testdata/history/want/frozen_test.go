package events

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outboxtest"
)

// Payloads as older versions wrote them reach the handlers of today.
func TestFrozenPayloads(t *testing.T) {
	t.Parallel()
	outboxtest.RequireDecodes(t, "../testdata/outbox.frozen.json", FinalizedTopic.Untyped(), PostedTopic.Untyped())
}

func TestUpcasters(t *testing.T) {
	t.Parallel()
	two, err := upcastFinalizedV1(FinalizedV1{Seconds: 3, Outcome: FinalizedV1OutcomeDone, UserID: "not a UUID"})
	require.NoError(t, err)
	three, err := upcastFinalizedV2(two)
	require.NoError(t, err)
	require.Equal(t, 3*time.Second, three.Took)
	require.Equal(t, OutcomeCompleted, three.Outcome)
	require.Nil(t, three.UserID)
}

// Sensitive values stay masked in older versions.
func TestOlderVersionsAreMasked(t *testing.T) {
	t.Parallel()
	secret := "hush"
	old := FinalizedV1{Note: &secret, Usage: FinalizedV1Usage{Key: secret}}
	require.NotContains(t, fmt.Sprintf("%+v %v %s", old, old.Usage, &old), secret)
}
