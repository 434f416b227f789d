package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outboxtest"
)

func TestRun(t *testing.T) {
	t.Parallel()
	url := outboxtest.Postgres(t).Config().ConnString()
	for range 2 { // the second run uses the tables of the first
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), url, &out))
		for _, want := range []string{
			"turn completed", "turn failed", "turn aborted", "duplicate true", "turn refused",
			"quota           480 of 1000 tokens used", "ledger          3 turns, 480 tokens",
		} {
			require.Contains(t, out.String(), want)
		}
	}
}
