package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/mailer/database"
	"github.com/outboxgen/outboxgen/outboxtest"
)

func TestDemoMayBeRepeated(t *testing.T) {
	t.Parallel()
	pool := outboxtest.Postgres(t)
	require.NoError(t, database.Migrate(t.Context(), pool))
	for range 2 {
		var out strings.Builder
		require.NoError(t, newDemo(pool, &out).run(t.Context()))
		require.Contains(t, out.String(), "\nleft:    5 mails,    0 digests\n")
		require.Contains(t, out.String(), "\nmails 181, sent 176, held back by the rate of a mailbox 5\n")
		require.Contains(t, out.String(), "\nat once: at most 1 of a mailbox, 5 of a tenant; refused by the provider: 0\n")
	}
}
